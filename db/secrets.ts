import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';
import { OperatorProblem } from './errors.ts';

/** What secrets are encrypted with: 32 bytes, and the version by which what was encrypted names its key. */
export interface SecretKey {
  readonly version: string;
  readonly key: Buffer;
}

/** There is no key, or not the one that was used. The message says which. */
export class SecretKeyMissing extends OperatorProblem {
  override readonly name = 'SecretKeyMissing';

  constructor(version: string | undefined) {
    super(
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
export function encryptSecret([first]: readonly SecretKey[], owner: string, secret: string): string {
  if (!first) throw new SecretKeyMissing(undefined);
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv(ALGORITHM, first.key, nonce).setAAD(Buffer.from(owner));
  const text = Buffer.concat([cipher.update(secret, 'utf8'), cipher.final()]);
  return `${first.version}.${Buffer.concat([nonce, cipher.getAuthTag(), text]).toString('base64')}`;
}

/**
 * What `encryptSecret` was given.
 * @throws {SecretKeyMissing} without the key of its version; {Error} for one that was changed, or is another owner's
 */
export function decryptSecret(keys: readonly SecretKey[], owner: string, stored: string): string {
  const [version = '', encoded = ''] = stored.split('.');
  const found = keys.find((key) => key.version === version);
  if (!found) throw new SecretKeyMissing(keys.length === 0 ? undefined : version);
  const bytes = Buffer.from(encoded, 'base64');
  const [nonce, rest] = [bytes.subarray(0, NONCE_BYTES), bytes.subarray(NONCE_BYTES)];
  const decipher = createDecipheriv(ALGORITHM, found.key, nonce, { authTagLength: TAG_BYTES })
    .setAAD(Buffer.from(owner))
    .setAuthTag(rest.subarray(0, TAG_BYTES));
  return decipher.update(rest.subarray(TAG_BYTES), undefined, 'utf8') + decipher.final('utf8');
}

/**
 * That of the key which encrypts.
 * @throws {SecretKeyMissing} without a key
 */
export function firstVersion([first]: readonly SecretKey[]): string {
  if (!first) throw new SecretKeyMissing(undefined);
  return first.version;
}
