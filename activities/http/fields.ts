// Reading a vendor's JSON so that, if it is not as documented, the place is known and no value of it is told: whatever
// reads a field throws FieldError if the field is not what is asked for.

/** A value in an answer and where it stands, such as `emails[0].type`; `` for the whole body. */
export interface Field {
  readonly path: string;
  readonly value: unknown;
}

/** A field is missing or of another type than documented. The message has its place, never its value. */
export class FieldError extends Error {
  override readonly name = 'FieldError';
  /** As in `Step`: `emails[0].type`, or `body`. */
  readonly field: string;

  constructor({ path }: Field) {
    const field = path === '' ? 'body' : path;
    super(`${field} is not as documented`);
    this.field = field;
  }
}

/**
 * The body of an answer as JSON.
 * @param text null if it was too large to be read
 * @throws {FieldError} `body`, if it is no JSON: empty, cut off, a web page
 */
export function bodyOf(text: string | null): Field {
  const body = { path: '', value: undefined };
  if (text === null) throw new FieldError(body);
  try {
    return { ...body, value: JSON.parse(text) };
  } catch {
    throw new FieldError(body);
  }
}

/** Whether a field is not there; JSON's null means the same to every vendor. */
export function isAbsent({ value }: Field): boolean {
  return value === undefined || value === null;
}

/**
 * A member of an object. What is absent has absent members, so that optional objects need no asking first.
 * @throws {FieldError} if the field is there and no object, or is the body and absent
 */
export function at(field: Field, key: string): Field {
  const path = field.path === '' ? key : `${field.path}.${key}`;
  if (field.path !== '' && isAbsent(field)) return { path, value: undefined };
  const object = objectOf(field);
  // Own members only: `constructor` is none of a vendor's.
  return { path, value: Object.hasOwn(object, key) ? object[key] : undefined };
}

/** A field that may be null but has to be there: one that was renamed must not read as "nothing found". */
export function present(field: Field): Field {
  if (field.value === undefined) throw new FieldError(field);
  return field;
}

/** A member that has to be an object itself. */
export function objectAt(field: Field, key: string): Field {
  const member = at(field, key);
  objectOf(member);
  return member;
}

/**
 * The items of a list, none if it is absent.
 * @throws {FieldError} if it is something else, or is the body and absent
 */
export function items(field: Field): Field[] {
  if (field.path !== '' && isAbsent(field)) return [];
  if (!Array.isArray(field.value)) throw new FieldError(field);
  return field.value.map((value: unknown, index) => ({ path: `${field.path}[${index}]`, value }));
}

/** Text, null if it is absent or empty. */
export function textOf(field: Field): string | null {
  if (isAbsent(field)) return null;
  if (typeof field.value !== 'string') throw new FieldError(field);
  return field.value.trim() || null;
}

/** Text that has to be there. */
export function requiredText(field: Field): string {
  const text = textOf(field);
  if (text === null) throw new FieldError(field);
  return text;
}

/** A status or type in lower case, empty if it is absent, so that tables of words need one spelling. */
export function wordOf(field: Field): string {
  return textOf(field)?.toLowerCase() ?? '';
}

/** As `wordOf`, but a number or true or false is a word as well. */
export function scalarOf(field: Field): string {
  const { value } = field;
  return typeof value === 'number' || typeof value === 'boolean' ? String(value) : wordOf(field);
}

/** A finite number, null if it is absent. */
export function numberOf(field: Field): number | null {
  if (isAbsent(field)) return null;
  if (typeof field.value !== 'number' || !Number.isFinite(field.value)) throw new FieldError(field);
  return field.value;
}

/** True or false, false if it is absent. */
export function flagOf(field: Field): boolean {
  if (isAbsent(field)) return false;
  if (typeof field.value !== 'boolean') throw new FieldError(field);
  return field.value;
}

/** True or false, and one of them has to be there. */
export function requiredFlag(field: Field): boolean {
  if (isAbsent(field)) throw new FieldError(field);
  return flagOf(field);
}

function objectOf(field: Field): Readonly<Record<string, unknown>> {
  if (!isRecord(field.value)) throw new FieldError(field);
  return field.value;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** The parts of a JSON pointer, unescaped. */
export type Pointer = readonly string[];

/**
 * Reads a JSON pointer (RFC 6901): `/results/0/email`, with `~1` for a slash and `~0` for a tilde in a name; empty
 * for the whole.
 * @returns null if the text is none
 */
export function parsePointer(text: string): Pointer | null {
  if (text === '') return [];
  if (!/^(?:\/(?:[^/~]|~[01])*)+$/.test(text)) return null;
  const parts = text.slice(1).split('/');
  return parts.map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
}

/** What a pointer points at; absent if an object or a list on the way has no such member. */
export function pointed(field: Field, pointer: Pointer): Field {
  return pointer.reduce(
    (here, part) => (Array.isArray(here.value) ? itemAt(here, part) : at(here, part)),
    field,
  );
}

function itemAt(list: Field, part: string): Field {
  const item = /^(?:0|[1-9][0-9]*)$/.test(part) ? items(list)[Number(part)] : undefined;
  return item ?? { path: `${list.path}[${part}]`, value: undefined };
}
