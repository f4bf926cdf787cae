// This file reads a vendor's JSON. If it is not as documented, errors name the place but never a
// value.

/**
 * Thrown if a field is missing or has another type than documented. The message is its place, as in
 * `Trouble`, never its value.
 */
export class FieldError extends Error {}

/** The parts of a JSON pointer, unescaped. */
export type Pointer = readonly string[];

/**
 * A value in a response and its place. Reading it as another type throws a FieldError. An absent
 * field reads as null, empty, or false, unless it is required.
 */
export class Field {
  /** The place, such as `emails[0].type`; empty for the whole body. */
  readonly path: string;
  readonly value: unknown;

  constructor(path: string, value: unknown) {
    this.path = path;
    this.value = value;
  }

  /** JSON's null counts as absent for every vendor. */
  get isAbsent(): boolean {
    return this.value === undefined || this.value === null;
  }

  fail(): never {
    throw new FieldError(this.path || 'body');
  }

  /**
   * Returns a member of an object. An absent field has absent members, so optional objects need no
   * check.
   */
  at(key: string): Field {
    const isBody = this.path === '';
    const path = isBody ? key : `${this.path}.${key}`;
    if (!isBody && this.isAbsent) return new Field(path, undefined);
    const members = this.object().value as Readonly<Record<string, unknown>>;
    // Own members only, because a vendor never means `constructor`.
    return new Field(path, Object.hasOwn(members, key) ? members[key] : undefined);
  }

  /**
   * Returns the field at a JSON pointer, absent if an object or a list on the path has no such
   * member.
   */
  pointed(pointer: Pointer): Field {
    let here: Field = this;
    for (const part of pointer) {
      if (Array.isArray(here.value)) here = here.item(part);
      else here = here.at(part);
    }
    return here;
  }

  /** Returns the item of a list at an index such as `0`, absent if there is none. */
  private item(index: string): Field {
    const isIndex = /^(?:0|[1-9][0-9]*)$/.test(index);
    const item = isIndex ? this.items()[Number(index)] : undefined;
    return item ?? new Field(`${this.path}[${index}]`, undefined);
  }

  /** Requires the field, which may be null. A renamed field must not read as "nothing found". */
  present(): Field {
    if (this.value === undefined) return this.fail();
    return this;
  }

  /** Requires an object. */
  object(): Field {
    const { value } = this;
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
    if (!isObject) return this.fail();
    return this;
  }

  /** Returns the items of a list, or an empty list if it is absent. A body must be a list. */
  items(): Field[] {
    if (this.path !== '' && this.isAbsent) return [];
    if (!Array.isArray(this.value)) return this.fail();
    return this.value.map((value: unknown, index) => new Field(`${this.path}[${index}]`, value));
  }

  /** Returns trimmed text, or null if it is absent or empty. */
  text(): string | null {
    if (this.isAbsent) return null;
    if (typeof this.value !== 'string') return this.fail();
    return this.value.trim() || null;
  }

  requiredText(): string {
    return this.text() ?? this.fail();
  }

  /**
   * Returns a status or type in lowercase, or empty text if it is absent. Tables of words then need
   * one spelling only.
   */
  word(): string {
    return this.text()?.toLowerCase() ?? '';
  }

  /** Like `word`, but also accepts numbers and booleans. */
  scalar(): string {
    const { value } = this;
    if (typeof value === 'number' || typeof value === 'boolean') return String(value);
    return this.word();
  }

  number(): number | null {
    if (this.isAbsent) return null;
    if (typeof this.value !== 'number' || !Number.isFinite(this.value)) return this.fail();
    return this.value;
  }

  flag(): boolean {
    if (this.isAbsent) return false;
    return this.requiredFlag();
  }

  requiredFlag(): boolean {
    if (typeof this.value !== 'boolean') return this.fail();
    return this.value;
  }
}

/**
 * Parses the body of a response as JSON.
 * @param text null if it was too large to be read
 * @throws {FieldError} `body`, if it is not JSON: empty, cut off, a web page
 */
export function bodyOf(text: string | null): Field {
  try {
    return new Field('', JSON.parse(text ?? ''));
  } catch {
    return new Field('', undefined).fail();
  }
}

/**
 * Parses a JSON pointer (RFC 6901) such as `/results/0/email`. Names escape a slash as `~1` and a
 * tilde as `~0`. An empty text is the whole body.
 * @returns null if the text is not a JSON pointer
 */
export function parsePointer(text: string): Pointer | null {
  if (text === '') return [];
  if (!/^(?:\/(?:[^/~]|~[01])*)+$/.test(text)) return null;
  const parts = text.slice(1).split('/');
  return parts.map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
}
