import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';
import { OperatorProblem } from './errors.ts';

/**
 * What secrets are encrypted with: 32 bytes, and the version by which what was encrypted names its
 * key.
 */
export interface SecretKey {
  readonly version: string;
  readonly key: Buffer;
}

/** What is stored cannot be decrypted. The message says why, and what to do. */
export class SecretUnreadable extends OperatorProblem {
  override readonly name: string = 'SecretUnreadable';

  constructor(version: string, message: string | null = null) {
    super(
      message ??
        `the key ${version} of SECRETS_KEY cannot decrypt what this database has for ${version}; give this program the right key, or if that is lost put a new one with another version in front and rotate the webhook secrets with --force`,
    );
  }
}

/** There is no key, or none of the version that was used. The message says which. */
export class SecretKeyMissing extends SecretUnreadable {
  override readonly name = 'SecretKeyMissing';

  constructor(version: string | undefined) {
    super(
      version ?? '',
      version === undefined
        ? 'SECRETS_KEY is not set, and webhook secrets are encrypted with it; give this program the one that the workers have'
        : `SECRETS_KEY lacks the key ${version}, with which a webhook secret was encrypted; add it behind the others, or if it is lost rotate the secret with --force`,
    );
  }
}

const ALGORITHM = 'aes-256-gcm';
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/**
 * Encrypts a secret with the first key.
 * @param owner whose it is: nobody else's row can hold it
 * @returns the key's version, `.`, and base64 of nonce, tag and ciphertext
 * @throws {SecretKeyMissing} without a key
 */
export function encryptSecret(
  [first]: readonly SecretKey[],
  owner: string,
  secret: string,
): string {
  if (!first) throw new SecretKeyMissing(undefined);
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv(ALGORITHM, first.key, nonce).setAAD(Buffer.from(owner));
  const text = Buffer.concat([cipher.update(secret, 'utf8'), cipher.final()]);
  return `${first.version}.${Buffer.concat([nonce, cipher.getAuthTag(), text]).toString('base64')}`;
}

/**
 * What `encryptSecret` was given.
 * @throws {SecretKeyMissing} without the key of its version; {SecretUnreadable} with another key of
 * that version, for a secret that was changed, or for another owner's
 */
export function decryptSecret(keys: readonly SecretKey[], owner: string, stored: string): string {
  const [version = '', encoded = ''] = stored.split('.');
  const found = keys.find((key) => key.version === version);
  if (!found) throw new SecretKeyMissing(keys.length === 0 ? undefined : version);
  const bytes = Buffer.from(encoded, 'base64');
  const [nonce, rest] = [bytes.subarray(0, NONCE_BYTES), bytes.subarray(NONCE_BYTES)];
  try {
    const decipher = createDecipheriv(ALGORITHM, found.key, nonce, { authTagLength: TAG_BYTES })
      .setAAD(Buffer.from(owner))
      .setAuthTag(rest.subarray(0, TAG_BYTES));
    return decipher.update(rest.subarray(TAG_BYTES), undefined, 'utf8') + decipher.final('utf8');
  } catch {
    // Node's errors here say only that the tag or its length is wrong.
    throw new SecretUnreadable(version);
  }
}

/** Returns whether `decryptSecret` gives the secret. */
export function canDecrypt(keys: readonly SecretKey[], owner: string, stored: string): boolean {
  try {
    decryptSecret(keys, owner, stored);
    return true;
  } catch (error) {
    if (error instanceof SecretUnreadable) return false;
    throw error;
  }
}

/**
 * That of the key which encrypts.
 * @throws {SecretKeyMissing} without a key
 */
export function firstVersion([first]: readonly SecretKey[]): string {
  if (!first) throw new SecretKeyMissing(undefined);
  return first.version;
}
