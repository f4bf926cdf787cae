import type Joi from 'joi';

declare module '@hapi/hapi' {
  interface RequestApplicationState {
    /** For a header of the answer, whatever that is. */
    ignoredFields?: string;
  }
}

/**
 * The members of a body that its schema does not know, as `webhook.mod, npis`: a misspelled one costs what its absence
 * costs (DECISIONS.md, Errors).
 * @returns visible ASCII (percent-encoding, RFC 3986), about 1 KB at most; empty if there are none
 */
export function ignoredFields(schema: Joi.Schema, body: unknown): string {
  let text = '';
  for (const path of unknownMembers(schema, body)) {
    if (text.length > 1000) return `${text}, ...`;
    // Nobody needs more than the beginning of a name.
    const names = path.map((name) => encodeURIComponent(name.slice(0, 40).toWellFormed()) || '""');
    text += (text === '' ? '' : ', ') + names.join('.');
  }
  return text;
}

function unknownMembers(schema: Joi.Schema, value: unknown): string[][] {
  // None for what may have any members.
  const known: readonly { key: string; schema: Joi.Schema }[] | null = schema.$_terms.keys ?? null;
  if (!known || typeof value !== 'object' || value === null || Array.isArray(value)) return [];
  return Object.entries(value).flatMap(([name, member]) => {
    const own = known.find(({ key }) => key === name);
    return own ? unknownMembers(own.schema, member).map((path) => [name, ...path]) : [[name]];
  });
}
