import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';
import { OperatorProblem } from '../connection/errors.ts';

/**
 * An encryption key of 32 bytes. Each encrypted secret starts with the version of the key that
 * encrypted it.
 */
export interface SecretKey {
  readonly version: string;
  readonly key: Buffer;
}

/** A stored secret cannot be decrypted. The message says why, and what to do. */
export class SecretUnreadable extends OperatorProblem {
  override readonly name: string = 'SecretUnreadable';

  constructor(version: string, message: string = wrongKey(version)) {
    super(message);
  }
}

const NO_KEY =
  'SECRETS_KEY is not set, and webhook secrets are encrypted with it; set it to the value that ' +
  'the workers have';

/**
 * No key is configured, or none with the secret's version. The message says which of the two is
 * missing.
 */
export class SecretKeyMissing extends SecretUnreadable {
  override readonly name = 'SecretKeyMissing';

  constructor(version: string | undefined) {
    super(version ?? '', version === undefined ? NO_KEY : missingKey(version));
  }
}

function missingKey(version: string): string {
  return (
    `SECRETS_KEY lacks the key ${version}, with which a webhook secret was encrypted; add it ` +
    'behind the others, or, if it is lost, rotate the secret with --force'
  );
}

function wrongKey(version: string): string {
  return (
    `the key ${version} of SECRETS_KEY cannot decrypt the webhook secrets of version ${version} ` +
    'in this database; set the right key, or, if it is lost, put a new one with another version ' +
    'in front and rotate the webhook secrets with --force'
  );
}

const ALGORITHM = 'aes-256-gcm';
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/**
 * Encrypts a secret with the first configured key.
 * @param owner the id of the secret's owner, such as an organization; decryption needs the same id,
 * so the result is useless in another owner's row
 * @returns the key's version, `.`, and base64 of nonce, tag, and ciphertext
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
  const sealed = Buffer.concat([nonce, cipher.getAuthTag(), text]);
  return `${first.version}.${sealed.toString('base64')}`;
}

/**
 * Decrypts the result of `encryptSecret`.
 * @throws {SecretKeyMissing} if no key has the version of the stored text; {SecretUnreadable} if
 * the secret was encrypted with a different key of that version or for another owner, or if the
 * stored text was changed
 */
export function decryptSecret(
  keys: readonly SecretKey[],
  owner: string,
  stored: string,
): string {
  const [version = '', encoded = ''] = stored.split('.');
  const found = keys.find((key) => key.version === version);
  if (!found) {
    throw new SecretKeyMissing(keys.length === 0 ? undefined : version);
  }
  const bytes = Buffer.from(encoded, 'base64');
  const nonce = bytes.subarray(0, NONCE_BYTES);
  const tag = bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES);
  const text = bytes.subarray(NONCE_BYTES + TAG_BYTES);
  try {
    const decipher = createDecipheriv(ALGORITHM, found.key, nonce, {
      authTagLength: TAG_BYTES,
    });
    decipher.setAAD(Buffer.from(owner));
    decipher.setAuthTag(tag);
    return decipher.update(text, undefined, 'utf8') + decipher.final('utf8');
  } catch {
    // Node's error is not passed on, because it says only that the tag or its length is wrong.
    throw new SecretUnreadable(version);
  }
}

/** Returns whether `decryptSecret` would succeed. */
export function canDecrypt(
  keys: readonly SecretKey[],
  owner: string,
  stored: string,
): boolean {
  try {
    decryptSecret(keys, owner, stored);
    return true;
  } catch (error) {
    if (error instanceof SecretUnreadable) return false;
    throw error;
  }
}

/**
 * Returns the version of the first key, which encrypts new secrets.
 * @throws {SecretKeyMissing} without a key
 */
export function firstVersion([first]: readonly SecretKey[]): string {
  if (!first) throw new SecretKeyMissing(undefined);
  return first.version;
}
