// This file reads the JSON of a vendor's response. If the JSON is not as documented, the error
// names the place in the response, but never a value, because values may be personal data.

/**
 * Thrown if a required field is missing or a field has another type than documented. The message is
 * the place of the field, such as `emails[0].type`, and never contains its value.
 */
export class FieldError extends Error {}

/**
 * The parts of a JSON pointer, unescaped. Each one is the name of a member or the index of an item.
 */
export type Pointer = readonly string[];

/**
 * A value in a response, with its place. Reading the value as a type that it does not have throws a
 * FieldError. An absent value reads as null, empty, or false, unless it is required.
 */
export class Field {
  /** The place in the response, such as `emails[0].type`. Empty for the whole body. */
  readonly path: string;
  readonly value: unknown;

  constructor(path: string, value: unknown) {
    this.path = path;
    this.value = value;
  }

  /** True if the field is missing or null. All vendors use null for missing values. */
  get isAbsent(): boolean {
    return this.value === undefined || this.value === null;
  }

  fail(): never {
    throw new FieldError(this.path || 'body');
  }

  /**
   * Returns the member of an object. If this field is absent, all its members are absent too, so
   * callers need not check optional objects.
   */
  at(key: string): Field {
    const isBody = this.path === '';
    const path = isBody ? key : `${this.path}.${key}`;
    if (!isBody && this.isAbsent) return new Field(path, undefined);
    const members = this.object().value as Readonly<Record<string, unknown>>;
    // Inherited members, such as `constructor`, do not come from the vendor.
    return new Field(path, Object.hasOwn(members, key) ? members[key] : undefined);
  }

  /**
   * Returns the field at a JSON pointer. The field is absent if an object or a list on the path
   * does not have the next member.
   */
  pointed(pointer: Pointer): Field {
    let here: Field = this;
    for (const part of pointer) {
      if (Array.isArray(here.value)) here = here.item(part);
      else here = here.at(part);
    }
    return here;
  }

  /**
   * Returns the item of a list at an index such as `0`. The item is absent if the list has no such
   * index.
   */
  private item(index: string): Field {
    const isIndex = /^(?:0|[1-9][0-9]*)$/.test(index);
    const item = isIndex ? this.items()[Number(index)] : undefined;
    return item ?? new Field(`${this.path}[${index}]`, undefined);
  }

  /**
   * Requires that the field exists, although it may be null. Without this check, a field that a
   * vendor renamed would read as "nothing found".
   */
  present(): Field {
    if (this.value === undefined) return this.fail();
    return this;
  }

  /** Requires that the value is an object. */
  object(): Field {
    const { value } = this;
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
    if (!isObject) return this.fail();
    return this;
  }

  /**
   * Returns the items of a list. An absent field is an empty list, but an absent body is an error.
   */
  items(): Field[] {
    if (this.path !== '' && this.isAbsent) return [];
    if (!Array.isArray(this.value)) return this.fail();
    return this.value.map(
      (value: unknown, index) => new Field(`${this.path}[${index}]`, value),
    );
  }

  /** Returns the trimmed text, or null if the field is absent or empty. */
  text(): string | null {
    if (this.isAbsent) return null;
    if (typeof this.value !== 'string') return this.fail();
    return this.value.trim() || null;
  }

  requiredText(): string {
    return this.text() ?? this.fail();
  }

  /**
   * Returns text such as a status or a type in lowercase, so that callers can compare it with one
   * spelling. Returns empty text if the field is absent.
   */
  word(): string {
    return this.text()?.toLowerCase() ?? '';
  }

  /** Like `word`, but also accepts numbers and booleans. */
  scalar(): string {
    const { value } = this;
    if (typeof value === 'number' || typeof value === 'boolean') {
      return String(value);
    }
    return this.word();
  }

  number(): number | null {
    if (this.isAbsent) return null;
    if (typeof this.value !== 'number' || !Number.isFinite(this.value)) {
      return this.fail();
    }
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
 * @throws {FieldError} with the message `body`, if the text is not JSON, such as an empty body, a
 * truncated one, or a web page
 */
export function bodyOf(text: string | null): Field {
  try {
    return new Field('', JSON.parse(text ?? ''));
  } catch {
    return new Field('', undefined).fail();
  }
}

/**
 * Parses a JSON pointer (RFC 6901) such as `/results/0/email`. A slash inside a name is written as
 * `~1`, and a tilde as `~0`. An empty text stands for the whole body.
 * @returns null if the text is not a JSON pointer
 */
export function parsePointer(text: string): Pointer | null {
  if (text === '') return [];
  if (!/^(?:\/(?:[^/~]|~[01])*)+$/.test(text)) return null;
  const parts = text.slice(1).split('/');
  return parts.map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
}
