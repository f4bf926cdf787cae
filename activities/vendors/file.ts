import type { EmailType } from '../../db/words.ts';
import { type HttpResponse, inBody, jsonApi } from '../http/client.ts';
import { bodyOf, type Field, FieldError, type Pointer } from '../http/fields.ts';
import { type Claim, candidatesOf, identityOf, timestampOf } from './responses.ts';
import {
  type Identity,
  missingOf,
  type Need,
  type Step,
  type Subject,
  stepBy,
  unlessPage,
  type Vendor,
  type Verdict,
} from './vendor.ts';

/**
 * A vendor that the sources file describes, after validation and with its secrets filled in.
 * README.md explains each field.
 */
export interface HttpJsonSource {
  readonly id: string;
  readonly method: 'GET' | 'POST';
  /** The URL of the request. Only its path and query may contain placeholders. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** The JSON body with its placeholders. Null for GET. */
  readonly body: object | null;
  readonly needs: readonly Need[];
  readonly gives: readonly EmailType[];
  readonly cost: number;
  readonly repeat_is_free: boolean;
  /** The timeout of one call, in milliseconds. */
  readonly call: number;
  readonly miss: {
    readonly statuses: readonly number[];
    readonly when: readonly Readonly<{
      pointer: Pointer;
      equals: string | number | boolean | null;
    }>[];
  };
  readonly candidates: {
    /** Points at a list of candidates, or at the only candidate. */
    readonly list: Pointer;
    /** Points at the address inside a candidate. The pointers below also start at the candidate. */
    readonly email: Pointer;
    readonly type: Mapping<EmailType> | null;
    readonly status: Mapping<Verdict> | null;
    readonly validated_at: Pointer | null;
  };
  readonly identity: Readonly<
    Record<'npi' | 'first' | 'last' | 'full' | 'state', Pointer | null>
  >;
}

/** Maps the vendor's words, in lowercase, to our own terms. */
export type Words<Meaning> = Readonly<Record<string, Meaning>>;

/** A field of the response, and the meanings of the words that it may contain. */
interface Mapping<Meaning> {
  readonly pointer: Pointer;
  readonly values: Words<Meaning>;
}

const NO_MATCH = { kind: 'miss', reason: 'no_match' } as const satisfies Step;

/**
 * Creates a vendor from its description in the sources file. The vendor must return its result as
 * JSON in its first response. HTTP statuses have their usual meaning, except those that the
 * description lists as "no result".
 */
export function createHttpJson(source: HttpJsonSource): Vendor {
  const { id, gives, cost, repeat_is_free: repeatIsFree, call: callMs } = source;
  const needs = needsOf(source);
  const ask = jsonApi('', source.headers, callMs);
  const meanings: Record<number, (response: HttpResponse) => Step> = {};
  meanings[200] = inBody((body) => stepOfResponse(body, source));
  for (const status of source.miss.statuses) {
    meanings[status] = unlessPage(NO_MATCH);
  }
  const byStatus = stepBy(meanings);
  const read = (response: HttpResponse): Step => {
    const step = byStatus(response);
    // The body is read only if the status allows it. If the vendor rejected our key or limits us,
    // the body says nothing about a person.
    const isOpen =
      response.status === 200 || (step.kind === 'fatal' && step.why === 'protocol');
    if (isOpen && saysMiss(response, source.miss.when)) return NO_MATCH;
    return step;
  };

  const submit: Vendor['submit'] = async (subject, signal) => {
    // An organization is known if we have its name or its domain. The URL may need the one that we
    // do not have.
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
    // This vendor never returns `pending`.
    poll: (_jobRef, subject, signal) => submit(subject, signal),
  };
}

/**
 * Returns the vendor's needs. If its response has no NPI, they include the name, because then only
 * the name can be compared.
 */
function needsOf(source: HttpJsonSource): readonly Need[] {
  if (source.identity.npi !== null) return source.needs;
  return [...new Set<Need>([...source.needs, 'name'])];
}

/**
 * Returns true if the body meets one of the conditions in `miss.when`. A body that is not JSON or
 * has another structure meets none.
 */
function saysMiss({ text }: HttpResponse, when: HttpJsonSource['miss']['when']): boolean {
  return when.some(({ pointer, equals }) => {
    try {
      return bodyOf(text).pointed(pointer).value === equals;
    } catch (error) {
      if (error instanceof FieldError) return false;
      throw error;
    }
  });
}

function stepOfResponse(body: Field, source: HttpJsonSource): Step {
  const { candidates: mapping } = source;
  const list = body.pointed(mapping.list).present();
  const isList = Array.isArray(list.value) || list.isAbsent;
  const entries = isList ? list.items() : [list];
  const candidates = candidatesOf(entries.map((entry) => claimOf(entry, mapping)));
  // We do not read the identity of a response without an email, because it may have any form.
  if (candidates.length === 0) {
    return { kind: 'miss', reason: 'no_email' };
  }
  const identity = identityIn(body, source.identity);
  // If we sent the name or the NPI that is compared, the response may only repeat our input.
  const compared: Need = identity.name === null ? 'npi' : 'name';
  const repeatsInput = source.needs.includes(compared);
  return { kind: 'found', candidates, identity, repeatsInput };
}

function identityIn(body: Field, pointers: HttpJsonSource['identity']): Identity {
  const at = (pointer: Pointer | null) => pointer && body.pointed(pointer);
  return identityOf({
    npi: at(pointers.npi),
    first: at(pointers.first),
    last: at(pointers.last),
    full: at(pointers.full),
    state: at(pointers.state),
  });
}

function claimOf(
  entry: Field,
  { email, type, status, validated_at }: HttpJsonSource['candidates'],
): Claim {
  return {
    email: entry.pointed(email).present(),
    vendorType: meaningOf(entry, type),
    verdict: meaningOf(entry, status) ?? 'unknown',
    validatedAt: validated_at && timestampOf(entry.pointed(validated_at).text()),
    isCurrent: false,
    confidence: null,
  };
}

/**
 * Returns our term for the vendor's word in a field. Returns null if the field is not mapped or the
 * mapping does not contain this word.
 */
function meaningOf<Meaning>(
  entry: Field,
  mapping: Mapping<Meaning> | null,
): Meaning | null {
  if (mapping === null) return null;
  const { pointer, values } = mapping;
  const word = entry.pointed(pointer).present().scalar();
  if (!Object.hasOwn(values, word)) return null;
  return values[word] ?? null;
}

interface Placeholder {
  /** The kind of data, as in `needs`, that the placeholder's value belongs to. */
  readonly need: Need;
  readonly value: (subject: Subject) => string | null | undefined;
}

/** The placeholders of URLs and bodies by name. */
const PLACEHOLDERS: ReadonlyMap<string, Placeholder> = new Map<string, Placeholder>([
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
 * Finds the placeholders in a text, or in all texts of a JSON value.
 * @returns for each placeholder's name the need that it belongs to, or null for an unknown
 * placeholder
 */
export function placeholdersIn(template: unknown): ReadonlyMap<string, Need | null> {
  const needs = new Map<string, Need | null>();
  for (const [, name = ''] of JSON.stringify(template).matchAll(PLACEHOLDER)) {
    const placeholder = PLACEHOLDERS.get(name);
    needs.set(name, placeholder === undefined ? null : placeholder.need);
  }
  return needs;
}

/**
 * Fills in the URL for one person. Values are percent-encoded, so a value can never add a part to
 * the URL. A value that consists only of dots and slashes counts as missing. In a path, it would
 * refer to a parent path even when encoded, because `%2e%2e` in a URL means `..` too.
 */
function fillUrl(template: string, subject: Subject) {
  return fill(template, subject, encodePart);
}

function encodePart(value: string): string {
  if (/^[./\\]*$/.test(value)) return '';
  return encodeURIComponent(value);
}

/** Fills in the body for one person. Members and items with an unknown value are left out. */
function fillJson(template: object, subject: Subject): unknown {
  return JSON.parse(JSON.stringify(template), (_key, part: unknown) => {
    // Removes the empty places of items whose value is unknown.
    if (Array.isArray(part)) return part.filter(() => true);
    if (typeof part !== 'string') return part;
    const { text, missing } = fill(part, subject, String);
    if (missing.length > 0) return undefined;
    return text;
  });
}

/**
 * Fills in a template for one person.
 * @param encode returns an empty text for a value that is not allowed
 * @returns the text, and the needs with a value that is unknown or not allowed
 */
function fill(template: string, subject: Subject, encode: (value: string) => string) {
  const missing: Need[] = [];
  const text = template.replaceAll(PLACEHOLDER, (_whole, name: string) => {
    const placeholder = PLACEHOLDERS.get(name);
    if (placeholder === undefined) return '';
    const value = encode(placeholder.value(subject) ?? '');
    if (value === '') missing.push(placeholder.need);
    return value;
  });
  return { text, missing };
}
