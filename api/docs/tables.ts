import REASONS from '../console/reasons.json' with { type: 'json' };
import FAULTS from '../http/faults.json' with { type: 'json' };
import OPENAPI from '../openapi/operations.json' with { type: 'json' };
import { PROBLEMS, type ProblemKind, problemBody } from '../problems.ts';
import { ROUTES } from '../routes.ts';

// The parts of the pages that are rendered from tables of the code, so that a page can't contradict
// what the API sends. A page has the name of a part in double braces, on a line for itself.

const PARTS: Readonly<Record<string, () => string>> = {
  endpoints: () => {
    const keyed = ROUTES.filter(({ role }) => role !== null);
    const rows = keyed.map(({ id, method, path }) => {
      const { summary } = OPENAPI.operations[id];
      return `| \`${method} ${path}\` | ${summary} |`;
    });
    return ['| endpoint | description |', '|---|---|', ...rows].join('\n');
  },
  problems: () => Object.values(PROBLEMS).flatMap(sectionsOf).join('\n\n'),
  faults: () =>
    [...byType()].map(([type, texts]) => section(3, type, texts)).join('\n\n'),
  attempt_reasons: () => {
    const items = Object.entries(REASONS).map(([name, text]) => `- \`${name}\`: ${text}`);
    return items.join('\n');
  },
};

/**
 * Replaces the names of parts by the parts.
 * @throws {Error} if a page names an unknown part
 */
export function withParts(markdown: string): string {
  return markdown.replaceAll(/^\{\{(\w+)\}\}$/gm, (_, name: string) => {
    const part = PARTS[name];
    if (part === undefined) {
      throw new Error(`a page names the unknown part ${name}`);
    }
    return part();
  });
}

/** Returns a section for each code of an error, with the text that the API sends. */
function sectionsOf(kind: ProblemKind): string[] {
  const { status, title, codes, headers = [], example = {}, hasMembers } = kind;
  const sent = headers.map((header) => `, with \`${header}\``).join('');
  const members = Object.keys(example).map((member) => `\`${member}\``);
  const more = hasMembers ? ` The body also has ${members.join(', ')}.` : '';
  return Object.keys(codes).map((code) => {
    const { detail } = problemBody(kind, code, example);
    return section(2, code, [`${status} ${title}${sent}. ${detail}${more}`]);
  });
}

/** Returns the texts of the entries of a 422, by their type. */
function byType(): ReadonlyMap<string, string[]> {
  const types = new Map<string, string[]>();
  for (const { type, words, advice } of Object.values(FAULTS)) {
    const texts = types.get(type) ?? [];
    texts.push(`${words}. ${advice}.`.replaceAll(/\{[a-z]+\}/g, '…'));
    types.set(type, texts);
  }
  return types;
}

function section(depth: number, name: string, texts: readonly string[]): string {
  const [first = ''] = texts;
  const list = texts.map((text) => `- ${text}`).join('\n');
  const body = (texts.length === 1 ? first : list).replaceAll('<', '\\<');
  return `${'#'.repeat(depth)} \`${name}\`\n\n${body}`;
}
