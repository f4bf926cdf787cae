import type { EmailType } from '../../db/words.ts';
import { type HttpAnswer, jsonApi, protocol, retryAfterMs, stepOfBody } from '../http/client.ts';
import {
  at,
  type Field,
  FieldError,
  isAbsent,
  items,
  numberOf,
  present,
  requiredText,
  textOf,
  wordOf,
} from '../http/fields.ts';
import { usState } from '../person/us-states.ts';
import { type Claim, candidatesOf, nameOf } from './candidate.ts';
import {
  employeeOf,
  GIVEN_UP,
  type Identity,
  type Step,
  stepOfNotFound,
  stepOfVendorStatus,
  typesOf,
  type Vendor,
  type VendorFacts,
  type VendorOptions,
  type Verdict,
} from './vendor.ts';

export const FULLENRICH = {
  id: 'fullenrich',
  document: 'https://docs.fullenrich.com',
  url: 'https://app.fullenrich.com/api/v2',
  callMs: 30_000,
  needs: ['name', 'organization'],
  gives: ['professional', 'personal'],
  isDated: false,
  repeatIsFree: false,
  mayStore: true,
  capMs: 300_000,
  rates: [{ calls: 60, perMs: 60_000 }],
} as const satisfies VendorFacts;

export interface FullEnrichOptions extends VendorOptions {
  /** Between two polls of a job: FULLENRICH_POLL_MS, and less only for a simulator that runs faster. */
  readonly pollMs: number;
}

/**
 * The vendor asks for no polls closer than 5 to 10 minutes (docs.fullenrich.com, "How Webhooks Work"). A deadline of 15
 * minutes leaves room for three: after a job's usual time, and 5 and 10 minutes later.
 */
export const FULLENRICH_POLL_MS = 300_000;
/** Before the first poll: "typically 30-90 seconds per contact" (the same page), so that one poll is enough as a rule. */
const USUAL_MS = 100_000;
/** "Too many requests. Try again in 1m": it never sends a Retry-After. */
const LIMITED_MS = 60_000;

const FIELDS: Readonly<Record<EmailType, string>> = {
  professional: 'contact.work_emails',
  personal: 'contact.personal_emails',
};
const CREDITS: Readonly<Record<EmailType, number>> = { professional: 1, personal: 3 };

/**
 * FullEnrich's contact enrichment, version 2, by name and place of work (docs.fullenrich.com; its OpenAPI,
 * operations `postContactBulkEnrich` and `GetContactBulkEnrichByID`). One contact is one job, so that one request's
 * end is never another's: two of the account's 60 calls a minute as a rule.
 *
 * Statuses say little here: a poll of a running job is a 400, a 402 carries a whole result. A repeated job is free
 * only if the first one has ended, which nobody knows whose answer was lost.
 */
export function createFullEnrich({
  baseUrl,
  apiKey,
  callMs = FULLENRICH.callMs,
  pollMs,
}: FullEnrichOptions): Vendor {
  const api = jsonApi(baseUrl, { authorization: `Bearer ${apiKey}` }, callMs);
  const firstMs = Math.min(USUAL_MS, pollMs);
  const begun = (jobRef: string): Step => ({ kind: 'pending', jobRef, pollAfterMs: firstMs });

  return {
    ...FULLENRICH,
    callMs,
    cost: (wantedType) => typesOf(wantedType).reduce((sum, type) => sum + CREDITS[type], 0),

    async submit(subject, signal) {
      const employee = employeeOf(subject);
      if (employee.kind === 'skip') return employee;
      const contact = {
        first_name: employee.first,
        last_name: employee.last,
        ...(employee.domain ? { domain: employee.domain } : {}),
        ...(employee.company ? { company_name: employee.company } : {}),
        enrich_fields: typesOf(subject.wantedType).map((type) => FIELDS[type]),
      };
      // The name is what the vendor's own pages show of the job.
      const job = { name: `NPI ${subject.npi}`, data: [contact] };
      return await api.post('/contact/enrich/bulk', job, signal, (answer) => stepOfSubmit(answer, begun));
    },

    async poll(jobRef, _subject, signal) {
      const path = `/contact/enrich/bulk/${encodeURIComponent(jobRef)}`;
      const pending: Step = { kind: 'pending', jobRef, pollAfterMs: pollMs };
      const step = await api.get(path, signal, (answer) => stepOfPoll(answer, pending));
      // A poll that failed was one, unless nobody was reached.
      const isFailed = step.kind === 'retry' && step.why !== 'unsent' && step.afterMs === null;
      return isFailed ? { ...step, afterMs: pollMs } : step;
    },
  };
}

function stepOfSubmit(answer: HttpAnswer, begun: (jobRef: string) => Step): Step {
  switch (answer.status) {
    case 200:
      return stepOfBody(answer, (body) => begun(jobRefOf(at(body, 'enrichment_id'))));
    case 400:
      return stepOfBody(answer, (body) => {
        const need = REFUSED.get(requiredText(at(body, 'code')));
        return need ? { kind: 'skip', missing: [need] } : protocol('code');
      });
    case 429:
      return limited(answer);
    default:
      return stepOfVendorStatus(answer);
  }
}

function limited({ headers }: HttpAnswer): Step {
  return { kind: 'retry', why: 'rate_limit', afterMs: retryAfterMs(headers) ?? LIMITED_MS };
}

/** Codes of a 400 that are about this person alone; any other says that the question itself is wrong. */
const REFUSED: ReadonlyMap<string, string> = new Map([
  ['error.enrichment.first_name.empty', 'name'],
  ['error.enrichment.last_name.empty', 'name'],
  ['error.enrichment.domain.empty', 'organization'],
]);

/** A UUID by the document. It becomes part of a path, so no other form is taken. */
function jobRefOf(field: Field): string {
  const id = requiredText(field);
  if (!/^[\w-]{1,100}$/.test(id)) throw new FieldError(field);
  return id;
}

function stepOfPoll(answer: HttpAnswer, pending: Step): Step {
  switch (answer.status) {
    case 200:
      return stepOfBody(answer, (body) => stepOfResult(parseResult(body), pending));
    case 400:
      return stepOfBody(answer, (body) =>
        textOf(at(body, 'code')) === 'error.enrichment.in_progress' ? pending : protocol('code'),
      );
    case 402: {
      const step = stepOfBody(answer, (body) => stepOfResult(parseResult(body), pending));
      return step.kind === 'found' ? step : { kind: 'fatal', why: 'credits' };
    }
    case 404:
      return stepOfNotFound(answer, GIVEN_UP);
    case 429:
      return limited(answer);
    default:
      return stepOfVendorStatus(answer);
  }
}

function stepOfResult(result: ReturnType<typeof parseResult>, pending: Step): Step {
  const { status, candidates, identity, isEcho } = result;
  const credits = result.credits === null ? {} : { credits: result.credits };
  const found: Step | null =
    candidates.length > 0 ? { kind: 'found', candidates, identity, isEcho, ...credits } : null;
  switch (status) {
    case 'FINISHED':
      return found ?? { kind: 'miss', reason: 'no_email', ...credits };
    case 'CREDITS_INSUFFICIENT':
      // What was found before they ran out is paid for.
      return found ?? { kind: 'fatal', why: 'credits' };
    case 'CANCELED':
      return GIVEN_UP;
    default:
      // CREATED, IN_PROGRESS, RATE_LIMIT, UNKNOWN and words not seen yet: no word that it has ended.
      return pending;
  }
}

// FullEnrich's OpenAPI, version 2: ResponseGetContactBulkEnrich, as far as it is used.

/** docs.fullenrich.com, "Email verification status": HIGH_PROBABILITY is a catch-all that is likely to be right. */
const VERDICTS: ReadonlyMap<string, Verdict> = new Map([
  ['deliverable', 'valid'],
  ['high_probability', 'risky'],
  ['catch_all', 'catch_all'],
  ['invalid', 'invalid'],
  ['invalid_domain', 'invalid'],
]);

/**
 * Reads a result of the one contact that a job of ours is about. The vendor leaves out what it has not found.
 * @throws {FieldError}
 */
function parseResult(body: Field) {
  // `CREATED`, `IN_PROGRESS`, `CANCELED`, `CREDITS_INSUFFICIENT`, `FINISHED`, `RATE_LIMIT` or `UNKNOWN`.
  const status = requiredText(at(body, 'status'));
  const data = at(body, 'data');
  const records = items(data);
  // A finished job has the contact it is about, found or not.
  if (status === 'FINISHED' && records.length === 0) throw new FieldError(data);
  return {
    status,
    candidates: candidatesOf(records.flatMap((record) => claimsOf(at(record, 'contact_info')))),
    identity: identityOf(records[0]),
    isEcho: records.every((record) => isAbsent(at(record, 'profile'))),
    // What the job cost so far, if the vendor says it.
    credits: numberOf(at(at(body, 'cost'), 'credits')),
  };
}

/** The most probable of each type first: if an address is named twice, the first counts. */
function claimsOf(contact: Field): (readonly [Field, Claim])[] {
  const claims = (name: string, type: EmailType) =>
    [at(contact, `most_probable_${name}_email`), ...items(at(contact, `${name}_emails`))]
      .filter((entry) => !isAbsent(entry))
      .map((entry) => claimOf(entry, type));
  return [...claims('work', 'professional'), ...claims('personal', 'personal')];
}

function claimOf(entry: Field, type: EmailType): readonly [Field, Claim] {
  const verdict = VERDICTS.get(wordOf(present(at(entry, 'status')))) ?? 'unknown';
  // No date is given, and a contact asked for within three months before is answered from store.
  return [present(at(entry, 'email')), { type, verdict, validatedAt: null }];
}

/**
 * Whom the vendor says it found. It has a profile only of people it was given a LinkedIn URL of, which NPPES has none
 * of; else its word is that the addresses are of the person in `input`.
 */
function identityOf(record: Field | undefined): Identity {
  if (!record) return { npi: null, name: null, state: null };
  const profile = at(record, 'profile');
  const person = isAbsent(profile) ? at(record, 'input') : profile;
  const location = at(profile, 'location');
  return {
    npi: null,
    name: nameOf(at(person, 'first_name'), at(person, 'last_name'), at(person, 'full_name')),
    state: usState(textOf(at(location, 'region')), textOf(at(location, 'country_code'))),
  };
}
