import type { Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import Handlebars from 'handlebars';
import { isSandbox } from '../../db/accounts/organizations.ts';
import { hasRole } from '../http/auth.ts';
import { CallFailed, callApi } from '../http/call-api.ts';

// Renders the pages of the console, and reads the lists that they filter.

/** The entry of the navigation that each page belongs to. */
const SECTIONS = {
  overview: 'overview',
  submit: 'submit',
  check: 'submit',
  uploads: 'uploads',
  draft: 'uploads',
  upload: 'uploads',
  batches: 'batches',
  batch: 'batches',
  deliveries: 'deliveries',
  usage: 'usage',
  signing: 'deliveries',
  keys: 'keys',
  key: 'keys',
  'new-key': 'keys',
} as const;

/** Renders a page for the session of a request. */
export function page(
  request: Request,
  h: ResponseToolkit,
  template: keyof typeof SECTIONS,
  context: object,
): ResponseObject {
  const on = { [SECTIONS[template]]: true };
  return h.view(template, { ...context, on, session: shownSession(request) });
}

/** Returns what the header shows about the visitor. */
export function shownSession(request: Request) {
  const { organizationId, keyName, role } = request.auth.credentials;
  return {
    isSandbox: isSandbox(organizationId),
    keyName,
    role,
    mayChange: hasRole(role, 'member'),
    isFull: role === 'full',
  };
}

/**
 * Returns the element of a time like `2026-01-05 10:00 UTC`, or an empty text. A script shows it in
 * the visitor's time zone (script.js).
 */
export function timeElement(at: Date | string | null) {
  if (at === null) return '';
  const iso = new Date(at).toISOString();
  const text = `${iso.slice(0, 16).replace('T', ' ')} UTC`;
  return new Handlebars.SafeString(`<time datetime="${iso}">${text}</time>`);
}

const FILTERS = ['status', 'npi', 'since', 'until', 'cursor'] as const;
const LISTED = 50;

interface Listed<T> {
  /** The filters as they were sent. A missing filter is empty. */
  readonly query: Readonly<Record<(typeof FILTERS)[number], string>>;
  /** The page of the list, or null if a filter is wrong. */
  readonly body: (T & { readonly next_cursor: string | null }) | null;
  /** Maps the name of a filter to its problem. */
  readonly problems: Readonly<Record<string, string>>;
  /** The query of the next page, or null on the last one. */
  readonly older: string | null;
}

/** Reads a list of the API by the filters in the query of a page. */
export async function listed<T>(request: Request, path: string): Promise<Listed<T>> {
  const given = FILTERS.map((name) => [name, String(request.query[name] ?? '').trim()]);
  const query: Listed<T>['query'] = Object.fromEntries(given);
  const search = new URLSearchParams({ limit: String(LISTED) });
  for (const name of FILTERS) if (query[name]) search.set(name, query[name]);
  if (query.since) search.set('since', startOf(query.since));
  if (query.until) search.set('until', endOf(query.until));
  if (query.since && query.until && query.until < query.since)
    return { query, body: null, problems: { period: 'backward' }, older: null };
  try {
    const { body } = await callApi<NonNullable<Listed<T>['body']>>(
      request,
      `${path}?${search}`,
    );
    const cursor = body.next_cursor;
    const older = cursor && String(new URLSearchParams({ ...query, cursor }));
    return { query, body, problems: {}, older };
  } catch (error) {
    if (!(error instanceof CallFailed) || error.status !== 422) {
      throw error;
    }
    const problems = error.fields();
    // There is no field for the cursor, which is part of a link.
    if (problems.cursor) throw error;
    return { query, body: null, problems, older: null };
  }
}

/** Returns the start of a UTC day. The API rejects an invalid day, and says what is wrong. */
export function startOf(day: string): string {
  return `${day}T00:00:00Z`;
}

/** Returns the start of the next UTC day, because `until` of the API excludes its time. */
function endOf(day: string): string {
  const at = Date.parse(startOf(day));
  return Number.isNaN(at) ? day : new Date(at + 86_400_000).toISOString();
}
