import type { EmailType } from '../../db/words.ts';
import { type HttpAnswer, inBody, jsonApi } from '../http/client.ts';
import { bodyOf, type Field, FieldError, type Pointer } from '../http/fields.ts';
import {
  type Claim,
  candidatesOf,
  identityOf,
  missingOf,
  type Need,
  type Step,
  type Subject,
  stepBy,
  timestampOf,
  unlessPage,
  type Vendor,
  type Verdict,
} from './vendor.ts';

/**
 * A vendor as the sources file describes it, checked, its secrets in place; README.md tells what
 * each part is for.
 */
export interface HttpJsonSource {
  readonly id: string;
  readonly method: 'GET' | 'POST';
  /** With placeholders in its path or query only. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Null for GET. */
  readonly body: object | null;
  readonly needs: readonly Need[];
  readonly gives: readonly EmailType[];
  readonly cost: number;
  readonly repeat_is_free: boolean;
  /** The most one call may take, in milliseconds. */
  readonly call: number;
  readonly miss: {
    readonly statuses: readonly number[];
    readonly when: readonly Readonly<{
      pointer: Pointer;
      equals: string | number | boolean | null;
    }>[];
  };
  readonly candidates: {
    /** A list of candidates, or the only one. */
    readonly list: Pointer;
    /** These from one candidate on. */
    readonly email: Pointer;
    readonly type: { readonly pointer: Pointer; readonly values: Words<EmailType> } | null;
    readonly status: { readonly pointer: Pointer; readonly values: Words<Verdict> } | null;
    readonly validated_at: Pointer | null;
  };
  readonly identity: Readonly<Record<'npi' | 'first' | 'last' | 'full' | 'state', Pointer | null>>;
}

/** By the vendor's word in lower case. */
export type Words<Meaning> = Readonly<Record<string, Meaning>>;

const NO_MATCH = { kind: 'miss', reason: 'no_match' } as const satisfies Step;

/**
 * A vendor that answers at once with JSON, described by data instead of code. Statuses mean what
 * HTTP means by them, but for those that the description says mean nobody.
 */
export function createHttpJson(source: HttpJsonSource): Vendor {
  const { id, gives, cost, repeat_is_free: repeatIsFree, call: callMs } = source;
  const needs: readonly Need[] =
    source.identity.npi === null ? [...new Set([...source.needs, 'name' as const])] : source.needs;
  const ask = jsonApi('', source.headers, callMs);
  const misses = Object.fromEntries(
    source.miss.statuses.map((status) => [status, unlessPage(NO_MATCH)]),
  );
  const byStatus = stepBy({ 200: inBody((body) => stepOfAnswer(body, source)), ...misses });
  const read = (answer: HttpAnswer): Step => {
    const step = byStatus(answer);
    // A status with a meaning speaks before the body: a refused key or a limit is no word about a
    // person.
    const isOpen = answer.status === 200 || (step.kind === 'fatal' && step.why === 'protocol');
    return isOpen && saysMiss(answer, source.miss.when) ? NO_MATCH : step;
  };

  const submit: Vendor['submit'] = async (subject, signal) => {
    // Of an organization its name or its domain is known, and the URL may be made of the other one.
    const { text: path, missing: unfit } = fillUrl(source.url, subject);
    const missing = new Set([...missingOf(subject, needs), ...unfit]);
    if (missing.size > 0) return { kind: 'skip', missing: [...missing] };
    const json = source.body === null ? undefined : fillJson(source.body, subject);
    return await ask({ path, json }, signal, read);
  };

  return {
    id,
    needs,
    gives,
    isDated: source.candidates.validated_at !== null,
    repeatIsFree,
    callMs,
    cost: () => cost,
    submit,
    // It never answers `pending`.
    poll: (_jobRef, subject, signal) => submit(subject, signal),
  };
}

/**
 * Whether one of the conditions holds for the body; none does for a body that is not JSON or of
 * another form.
 */
function saysMiss({ text }: HttpAnswer, when: HttpJsonSource['miss']['when']): boolean {
  return when.some(({ pointer, equals }) => {
    try {
      return bodyOf(text).pointed(pointer).value === equals;
    } catch (error) {
      if (error instanceof FieldError) return false;
      throw error;
    }
  });
}

function stepOfAnswer(body: Field, source: HttpJsonSource): Step {
  const { candidates: mapping } = source;
  const list = body.pointed(mapping.list).present();
  const entries = Array.isArray(list.value) || list.isAbsent ? list.items() : [list];
  const candidates = candidatesOf(entries.map((entry) => claimOf(entry, mapping)));
  // Whom an answer without an email is about is not asked: it may say that in any form.
  if (candidates.length === 0) return { kind: 'miss', reason: 'no_email' };
  const pointers = Object.entries(source.identity);
  const fields = pointers.map(
    ([part, pointer]) => [part, pointer && body.pointed(pointer)] as const,
  );
  const identity = identityOf(Object.fromEntries(fields));
  // It may have what it was told from us.
  const isEcho = source.needs.includes(identity.name === null ? 'npi' : 'name');
  return { kind: 'found', candidates, identity, isEcho };
}

function claimOf(
  entry: Field,
  { email, type, status, validated_at }: HttpJsonSource['candidates'],
): Claim {
  return {
    email: entry.pointed(email).present(),
    vendorType: type && (meaningOf(entry, type) ?? null),
    verdict: (status && meaningOf(entry, status)) ?? 'unknown',
    validatedAt: validated_at && timestampOf(entry.pointed(validated_at).text()),
  };
}

/** Undefined for a word that the file gives no meaning. */
function meaningOf<Meaning>(
  entry: Field,
  { pointer, values }: { readonly pointer: Pointer; readonly values: Words<Meaning> },
): Meaning | undefined {
  const word = entry.pointed(pointer).present().scalar();
  return Object.hasOwn(values, word) ? values[word] : undefined;
}

/**
 * What `{name}` in a URL or body stands for: the need it is a part of, and its value for one
 * person.
 */
const PLACEHOLDERS: ReadonlyMap<
  string,
  { readonly need: Need; readonly value: (subject: Subject) => string | null | undefined }
> = new Map([
  ['npi', { need: 'npi', value: ({ npi }) => npi }],
  ['first', { need: 'name', value: ({ person }) => person?.first }],
  ['last', { need: 'name', value: ({ person }) => person?.last }],
  ['company', { need: 'organization', value: ({ organization }) => organization?.name }],
  ['domain', { need: 'organization', value: ({ organization }) => organization?.domain }],
  ['street', { need: 'address', value: ({ person }) => person?.practice.line1 }],
  ['city', { need: 'address', value: ({ person }) => person?.practice.city }],
  ['state', { need: 'address', value: ({ person }) => person?.practice.state }],
  ['zip', { need: 'address', value: ({ person }) => person?.practice.zip }],
]);

const PLACEHOLDER = /\{([a-z]+)\}/g;

/**
 * The names in braces of a text, or of all texts in a JSON value.
 * @returns by name what has to be known for it; null if there is no such placeholder
 */
export function placeholdersIn(template: unknown): ReadonlyMap<string, Need | null> {
  const names = [...JSON.stringify(template).matchAll(PLACEHOLDER)].map(([, name = '']) => name);
  return new Map(names.map((name) => [name, PLACEHOLDERS.get(name)?.need ?? null]));
}

/**
 * A URL for one person; every value percent-encoded, so that none can be read as more than one part
 * of it. Dots and slashes alone are no value: in a path they would walk up in it, encoded or not,
 * for to a URL `%2e%2e` is `../..` as well.
 */
function fillUrl(template: string, subject: Subject) {
  return fill(template, subject, (value) =>
    /^[./\\]*$/.test(value) ? '' : encodeURIComponent(value),
  );
}

/** A body for one person; a member or an item of which a value is not known is left out. */
function fillJson(template: object, subject: Subject): unknown {
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
 * @returns a text for one person, and the needs of which a value is not known, or is none that may
 * stand in it
 */
function fill(template: string, subject: Subject, encode: (value: string) => string) {
  const missing: Need[] = [];
  const text = template.replaceAll(PLACEHOLDER, (_whole, name: string) => {
    const placeholder = PLACEHOLDERS.get(name);
    const value = encode(placeholder?.value(subject) ?? '');
    if (placeholder && value === '') missing.push(placeholder.need);
    return value;
  });
  return { text, missing };
}
