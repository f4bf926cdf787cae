import type { Need, Subject } from '../vendor.ts';

/** What `{name}` in a URL or body stands for: the need it is a part of, and its value for one person. */
const PLACEHOLDERS: Readonly<
  Record<string, { readonly need: Need; readonly value: (subject: Subject) => string | null | undefined }>
> = {
  npi: { need: 'npi', value: ({ npi }) => npi },
  first: { need: 'name', value: ({ person }) => person?.first },
  last: { need: 'name', value: ({ person }) => person?.last },
  company: { need: 'organization', value: ({ organization }) => organization?.name },
  domain: { need: 'organization', value: ({ organization }) => organization?.domain },
  street: { need: 'address', value: ({ person }) => person?.practice.line1 },
  city: { need: 'address', value: ({ person }) => person?.practice.city },
  state: { need: 'address', value: ({ person }) => person?.practice.state },
  zip: { need: 'address', value: ({ person }) => person?.practice.zip },
};

const PLACEHOLDER = /\{([a-z]+)\}/g;

/** JSON whose texts may hold placeholders. */
export type JsonTemplate = string | number | boolean | null | readonly JsonTemplate[] | JsonObjectTemplate;
export interface JsonObjectTemplate {
  readonly [name: string]: JsonTemplate;
}

/** The names in braces of a text or of every text in a JSON value, known or not. */
export function placeholdersIn(template: JsonTemplate): string[] {
  if (typeof template === 'string') return [...template.matchAll(PLACEHOLDER)].map(([, name = '']) => name);
  if (typeof template !== 'object' || template === null) return [];
  return Object.values(template).flatMap((part: JsonTemplate) => placeholdersIn(part));
}

/** @returns what has to be known for a placeholder; null if there is no such placeholder */
export function needOf(placeholder: string): Need | null {
  return Object.hasOwn(PLACEHOLDERS, placeholder) ? (PLACEHOLDERS[placeholder]?.need ?? null) : null;
}

/**
 * A URL for one person; every value percent-encoded, so that none can be read as more than one part of it. Dots and
 * slashes alone are no value: in a path they would walk up in it, encoded or not, for to a URL `%2e%2e` is `../..` as
 * well.
 */
export function fillUrl(template: string, subject: Subject) {
  return fill(template, subject, (value) => (/^[./\\]*$/.test(value) ? '' : encodeURIComponent(value)));
}

/** A body for one person; a member or an item of which a value is not known is left out. */
export function fillJson(template: JsonObjectTemplate, subject: Subject): unknown {
  return JSON.parse(JSON.stringify(template), (_key, part: unknown) => {
    // What is left out of a list leaves a hole.
    if (Array.isArray(part)) return part.filter(() => true);
    if (typeof part !== 'string') return part;
    const { text, missing } = fill(part, subject, String);
    return missing.length === 0 ? text : undefined;
  });
}

/**
 * @param encode makes nothing of a value that may not stand in the text
 * @returns a text for one person, and the needs of which a value is not known, or is none that may stand in it
 */
function fill(template: string, subject: Subject, encode: (value: string) => string) {
  const missing: Need[] = [];
  const text = template.replaceAll(PLACEHOLDER, (_whole, name: string) => {
    const placeholder = PLACEHOLDERS[name];
    const value = encode(placeholder?.value(subject) ?? '');
    if (placeholder && value === '') missing.push(placeholder.need);
    return value;
  });
  return { text, missing };
}
