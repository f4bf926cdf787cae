import { typeid } from 'typeid-js';

/** `bat_` / `req_` … + 26 characters of lower-case Crockford base32 of a UUIDv7 (TypeID; DECISIONS.md, Ids and time). */
export type IdPrefix = 'org' | 'key' | 'bat' | 'req' | 'msg' | 'lkp' | 'imp';

export function newId(prefix: IdPrefix): string {
  return typeid(prefix).toString();
}

/** What a well-formed id of that kind looks like, as the source of a regular expression. */
export function idPattern(prefix: IdPrefix): string {
  // 26 base32 digits hold 130 bits: the first may not exceed 7.
  return `^${prefix}_[0-7][0-9a-hjkmnp-tv-z]{25}$`;
}

/** True for a well-formed id of that kind, known or not. */
export function isId(prefix: IdPrefix, text: string): boolean {
  return new RegExp(idPattern(prefix)).test(text);
}
