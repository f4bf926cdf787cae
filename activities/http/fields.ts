// Reading a vendor's JSON so that, if it is not as documented, the place is known and no value of
// it is told.

/**
 * A field is missing or of another type than documented. The message is its place, as in `Trouble`,
 * never its value.
 */
export class FieldError extends Error {}

/** The parts of a JSON pointer, unescaped. */
export type Pointer = readonly string[];

/**
 * A value in an answer and where it stands. Whatever reads it throws FieldError if it is not what
 * is asked for; but for what is required, a field that is absent reads as null, empty or false.
 */
export class Field {
  /** Such as `emails[0].type`; empty for the whole body. */
  readonly path: string;
  readonly value: unknown;

  constructor(path: string, value: unknown) {
    this.path = path;
    this.value = value;
  }

  /** JSON's null means the same to every vendor. */
  get isAbsent(): boolean {
    return this.value === undefined || this.value === null;
  }

  fail(): never {
    throw new FieldError(this.path || 'body');
  }

  /**
   * A member of an object. What is absent has absent members, so that optional objects need no
   * asking first.
   */
  at(key: string): Field {
    const path = this.path === '' ? key : `${this.path}.${key}`;
    if (this.path !== '' && this.isAbsent) return new Field(path, undefined);
    const members = this.object().value as Readonly<Record<string, unknown>>;
    // Own members only: `constructor` is none of a vendor's.
    return new Field(path, Object.hasOwn(members, key) ? members[key] : undefined);
  }

  /** What a JSON pointer points at; absent if an object or a list on the way has no such member. */
  pointed(pointer: Pointer): Field {
    return pointer.reduce<Field>((here, part) => {
      if (!Array.isArray(here.value)) return here.at(part);
      const item = /^(?:0|[1-9][0-9]*)$/.test(part) ? here.items()[Number(part)] : undefined;
      return item ?? new Field(`${here.path}[${part}]`, undefined);
    }, this);
  }

  /** May be null but has to be there: one that was renamed must not read as "nothing found". */
  present(): Field {
    return this.value === undefined ? this.fail() : this;
  }

  /** Has to be an object. */
  object(): Field {
    return typeof this.value !== 'object' || this.value === null || Array.isArray(this.value)
      ? this.fail()
      : this;
  }

  /** The items of a list, none if it is absent; the body has to be one. */
  items(): Field[] {
    if (this.path !== '' && this.isAbsent) return [];
    if (!Array.isArray(this.value)) return this.fail();
    return this.value.map((value: unknown, index) => new Field(`${this.path}[${index}]`, value));
  }

  /** Null if it is absent or empty. */
  text(): string | null {
    if (this.isAbsent) return null;
    return typeof this.value === 'string' ? this.value.trim() || null : this.fail();
  }

  requiredText(): string {
    return this.text() ?? this.fail();
  }

  /**
   * A status or type in lower case, empty if it is absent, so that tables of words need one
   * spelling.
   */
  word(): string {
    return this.text()?.toLowerCase() ?? '';
  }

  /** As `word`, but a number or true or false is a word as well. */
  scalar(): string {
    const { value } = this;
    return typeof value === 'number' || typeof value === 'boolean' ? String(value) : this.word();
  }

  number(): number | null {
    if (this.isAbsent) return null;
    return typeof this.value === 'number' && Number.isFinite(this.value) ? this.value : this.fail();
  }

  flag(): boolean {
    return this.isAbsent ? false : this.requiredFlag();
  }

  requiredFlag(): boolean {
    return typeof this.value === 'boolean' ? this.value : this.fail();
  }
}

/**
 * The body of an answer as JSON.
 * @param text null if it was too large to be read
 * @throws {FieldError} `body`, if it is no JSON: empty, cut off, a web page
 */
export function bodyOf(text: string | null): Field {
  try {
    return new Field('', JSON.parse(text ?? ''));
  } catch {
    return new Field('', undefined).fail();
  }
}

/**
 * Reads a JSON pointer (RFC 6901): `/results/0/email`, with `~1` for a slash and `~0` for a tilde
 * in a name; empty for the whole.
 * @returns null if the text is none
 */
export function parsePointer(text: string): Pointer | null {
  if (text === '') return [];
  if (!/^(?:\/(?:[^/~]|~[01])*)+$/.test(text)) return null;
  const parts = text.slice(1).split('/');
  return parts.map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
}
