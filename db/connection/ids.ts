import { hash, randomUUID } from 'node:crypto';

/** The types of objects that have an id. `sbx` is the sandbox of an organization. */
export type IdPrefix =
  | 'org'
  | 'sbx'
  | 'key'
  | 'bat'
  | 'req'
  | 'msg'
  | 'lkp'
  | 'imp'
  | 'upl';

const DIGITS = '0123456789abcdefghjkmnpqrstvwxyz';

let last = 0n;

/**
 * Returns a new id in TypeID format: the prefix, `_`, and a UUIDv7 as 26 characters of lowercase
 * Crockford base32 (DECISIONS.md, Ids and time). Ids that one process creates sort by the order of
 * their creation.
 */
export function newId(prefix: IdPrefix): string {
  const now = BigInt(Date.now()) << 12n;
  last = now > last ? now : last + 1n;
  // UUIDv7 (RFC 9562): 48 bits of milliseconds, the version, a 12-bit counter, the variant, and 62
  // random bits. The variant and the random bits are taken from a UUIDv4, which has them at the
  // same place. This is fast, because Node generates UUIDv4s in advance.
  const end = BigInt(`0x${randomUUID().slice(19).replace('-', '')}`);
  let uuid = ((last >> 12n) << 80n) | (7n << 76n) | ((last & 0xfffn) << 64n) | end;
  let text = '';
  for (let n = 0; n < 26; n += 1) {
    text = DIGITS.charAt(Number(uuid & 31n)) + text;
    uuid >>= 5n;
  }
  return `${prefix}_${text}`;
}

/**
 * Returns an id of something invented, such as the batch of a test event. It is well-formed, and
 * its time is 1970, so it is never the id of a stored object.
 * @param seed the same prefix and seed give the same id
 */
export function inventedId(prefix: IdPrefix, seed: string): string {
  const bytes = hash('sha256', seed, 'buffer').subarray(0, 16);
  const end = [...bytes].map((byte) => DIGITS.charAt(byte & 31));
  return `${prefix}_${'0'.repeat(10)}${end.join('')}`;
}

/** A UUID has 128 bits, and 26 base32 digits have 130. So the first digit is at most 7. */
const REST = '_[0-7][0-9a-hjkmnp-tv-z]{25}$';
const ID = new RegExp(`^[a-z]{3}${REST}`);

/** Returns the text of a regular expression that matches well-formed ids with a prefix. */
export function idPattern(prefix: IdPrefix): string {
  return `^${prefix}${REST}`;
}

/**
 * Returns whether a text is a well-formed id with a prefix. An object with this id need not exist.
 */
export function isId(prefix: IdPrefix, text: string): boolean {
  return text.startsWith(prefix) && ID.test(text);
}

/** Returns the UUID that an id contains, as 32 hex digits. */
export function uuidOf(id: string): string {
  let uuid = 0n;
  for (const digit of id.slice(4)) {
    uuid = (uuid << 5n) | BigInt(DIGITS.indexOf(digit));
  }
  return uuid.toString(16).padStart(32, '0');
}
