import { at, type Field, items } from './fields.ts';

/** The parts of a JSON pointer, unescaped. */
export type Pointer = readonly string[];

/**
 * Reads a JSON pointer (RFC 6901): `/results/0/email`, with `~1` for a slash and `~0` for a tilde in a name; empty
 * for the whole.
 * @returns null where the text is none
 */
export function parsePointer(text: string): Pointer | null {
  if (text === '') return [];
  if (!/^(?:\/(?:[^/~]|~[01])*)+$/.test(text)) return null;
  const parts = text.slice(1).split('/');
  return parts.map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
}

/**
 * What a pointer points at; absent where an object or a list on the way has no such member.
 * @throws {FieldError} where something on the way is neither
 */
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
