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

/** @returns what has to be known for a placeholder; null where there is no such placeholder */
export function needOf(placeholder: string): Need | null {
  return Object.hasOwn(PLACEHOLDERS, placeholder) ? (PLACEHOLDERS[placeholder]?.need ?? null) : null;
}

/**
 * A URL for one person; every value percent-encoded, so that none can be read as more than one part of it.
 * @returns null where a value is not known
 */
export function fillUrl(template: string, subject: Subject): string | null {
  return fill(template, subject, encodeURIComponent);
}

/** A body for one person; a member or an item of which a value is not known is left out. */
export function fillJson(template: JsonTemplate, subject: Subject): JsonTemplate | undefined {
  if (typeof template === 'string') return fill(template, subject, String) ?? undefined;
  if (typeof template !== 'object' || template === null) return template;
  if (isList(template)) {
    return template.flatMap((part) => {
      const filled = fillJson(part, subject);
      return filled === undefined ? [] : [filled];
    });
  }
  const members = Object.entries(template).flatMap(([name, part]) => {
    const filled = fillJson(part, subject);
    return filled === undefined ? [] : [[name, filled] as const];
  });
  return Object.fromEntries(members);
}

function fill(template: string, subject: Subject, encode: (value: string) => string): string | null {
  let known = true;
  const filled = template.replaceAll(PLACEHOLDER, (_whole, name: string) => {
    const value = PLACEHOLDERS[name]?.value(subject);
    if (!value) known = false;
    return encode(value ?? '');
  });
  return known ? filled : null;
}

/** Array.isArray does not tell the compiler that a read-only list is one. */
function isList(template: readonly JsonTemplate[] | JsonObjectTemplate): template is readonly JsonTemplate[] {
  return Array.isArray(template);
}
