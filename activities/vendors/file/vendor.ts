import type { EmailType } from '../../../db/words.ts';
import { type HttpAnswer, jsonApi, stepOfBody } from '../../http/client.ts';
import {
  bodyOf,
  type Field,
  FieldError,
  isAbsent,
  items,
  type Pointer,
  pointed,
  present,
  scalarOf,
  textOf,
} from '../../http/fields.ts';
import { usState } from '../../person/us-states.ts';
import { type Claim, candidatesOf, nameOf, timestampOf } from '../candidate.ts';
import {
  type Identity,
  missingOf,
  type Need,
  type Step,
  stepOfNotFound,
  stepOfVendorStatus,
  type Vendor,
  type Verdict,
} from '../vendor.ts';
import { fillJson, fillUrl, type JsonObjectTemplate } from './template.ts';

/** A vendor as the sources file describes it, checked, its secrets in place; README.md tells what each part is for. */
export interface HttpJsonSource {
  readonly id: string;
  readonly method: 'GET' | 'POST';
  /** With placeholders in its path or query only. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Null for GET. */
  readonly body: JsonObjectTemplate | null;
  readonly needs: readonly Need[];
  readonly gives: readonly EmailType[];
  readonly cost: number;
  readonly repeat_is_free: boolean;
  /** The most one call may take, in milliseconds. */
  readonly call: number;
  readonly miss: {
    readonly statuses: readonly number[];
    readonly when: readonly {
      readonly pointer: Pointer;
      readonly equals: string | number | boolean | null;
    }[];
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
 * A vendor that answers at once with JSON, described by data instead of code. Statuses mean what HTTP means by
 * them, but for those that the description says mean nobody.
 */
export function createHttpJson(source: HttpJsonSource): Vendor {
  const { id, needs, gives, cost, repeat_is_free: repeatIsFree, call: callMs } = source;
  const api = jsonApi('', source.headers, callMs);
  const read = (answer: HttpAnswer) => stepOf(answer, source);

  const submit: Vendor['submit'] = async (subject, signal) => {
    // Of an organization its name or its domain is known, and the URL may be made of the other one.
    const { text: url, missing: unfit } = fillUrl(source.url, subject);
    const missing = new Set([...missingOf(subject, needs), ...unfit]);
    if (missing.size > 0) return { kind: 'skip', missing: [...missing] };
    return source.body === null
      ? await api.get(url, signal, read)
      : await api.post(url, fillJson(source.body, subject), signal, read);
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

function stepOf(answer: HttpAnswer, source: HttpJsonSource): Step {
  const { status } = answer;
  if (source.miss.statuses.includes(status)) return stepOfNotFound(answer, NO_MATCH);
  if (status < 500 && saysMiss(answer, source.miss.when)) return NO_MATCH;
  return status === 200
    ? stepOfBody(answer, (body) => stepOfAnswer(body, source))
    : stepOfVendorStatus(answer);
}

/** Whether one of the conditions holds for the body; none does for a body that is not JSON or of another form. */
function saysMiss({ text }: HttpAnswer, when: HttpJsonSource['miss']['when']): boolean {
  return when.some(({ pointer, equals }) => {
    try {
      return pointed(bodyOf(text), pointer).value === equals;
    } catch (error) {
      if (error instanceof FieldError) return false;
      throw error;
    }
  });
}

function stepOfAnswer(body: Field, source: HttpJsonSource): Step {
  const { candidates: mapping } = source;
  const list = present(pointed(body, mapping.list));
  const entries = Array.isArray(list.value) || isAbsent(list) ? items(list) : [list];
  const candidates = candidatesOf(
    entries.map((entry) => [present(pointed(entry, mapping.email)), claimOf(entry, mapping)] as const),
  );
  if (candidates.length === 0) return { kind: 'miss', reason: 'no_email' };
  const identity = identityOf(body, source.identity);
  // It may have what it was told from us.
  const isEcho = source.needs.includes(identity.name === null ? 'npi' : 'name');
  return { kind: 'found', candidates, identity, isEcho };
}

function claimOf(entry: Field, { type, status, validated_at }: HttpJsonSource['candidates']): Claim {
  return {
    type: type && (meaningOf(entry, type) ?? null),
    verdict: (status && meaningOf(entry, status)) ?? 'unknown',
    validatedAt: validated_at && timestampOf(textOf(pointed(entry, validated_at))),
  };
}

/** Undefined for a word that the file gives no meaning. */
function meaningOf<Meaning>(
  entry: Field,
  { pointer, values }: { readonly pointer: Pointer; readonly values: Words<Meaning> },
): Meaning | undefined {
  const word = scalarOf(present(pointed(entry, pointer)));
  return Object.hasOwn(values, word) ? values[word] : undefined;
}

function identityOf(body: Field, { npi, first, last, full, state }: HttpJsonSource['identity']): Identity {
  const fieldAt = (pointer: Pointer | null) => pointer && pointed(body, pointer);
  return {
    npi: npi && (scalarOf(pointed(body, npi)) || null),
    name: nameOf(fieldAt(first), fieldAt(last), fieldAt(full)),
    state: usState(state && textOf(pointed(body, state)), null),
  };
}
