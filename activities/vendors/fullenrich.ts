import type { EmailType, WantedType } from '../../db/words.ts';
import { get, type HttpAnswer, type NoAnswer, post, retryAfterMs } from '../http/client.ts';
import { at, type Field, FieldError, requiredText, textOf } from '../http/fields.ts';
import { employeeOf } from './employee.ts';
import { type EnrichmentResult, parseResult } from './fullenrich-result.ts';
import { GIVEN_UP, noAnswer, protocol, stepOfBody, stepOfNotFound, stepOfStatus } from './steps.ts';
import type { Provider, Step, VendorFacts } from './vendor.ts';

export const FULLENRICH = {
  url: 'https://app.fullenrich.com/api/v2',
  capMs: 300_000,
  rates: [{ calls: 60, perMs: 60_000 }],
} as const satisfies VendorFacts;

export interface FullEnrichOptions {
  /** Up to and including the version. */
  readonly baseUrl: string;
  readonly apiKey: string;
  /** Between two polls, in milliseconds: FULLENRICH_POLL_MS, and less only for a simulator that runs faster. */
  readonly pollMs: number;
}

/**
 * Jobs take 30 to 90 seconds. "Try again in 30 seconds", says the vendor's answer while one runs; every poll counts
 * for the account's 60 calls a minute.
 */
export const FULLENRICH_POLL_MS = 25_000;

const FIELDS: Readonly<Record<EmailType, string>> = {
  professional: 'contact.work_emails',
  personal: 'contact.personal_emails',
};
const CREDITS: Readonly<Record<EmailType, number>> = { professional: 1, personal: 3 };

/**
 * FullEnrich's contact enrichment, version 2, by name and place of work (docs.fullenrich.com; its OpenAPI,
 * operations `postContactBulkEnrich` and `GetContactBulkEnrichByID`). One contact is one job, so that one request's
 * end is never another's.
 *
 * Statuses say little here: a poll of a running job is a 400, a 402 carries a whole result. A repeated job is free
 * only if the first one has ended, which nobody knows whose answer was lost.
 */
export function createFullEnrich({ baseUrl, apiKey, pollMs }: FullEnrichOptions): Provider {
  const base = `${baseUrl.replace(/\/+$/, '')}/contact/enrich/bulk`;
  const headers = { authorization: `Bearer ${apiKey}`, accept: 'application/json' };
  const pending = (jobRef: string): Step => ({ kind: 'pending', jobRef, pollAfterMs: pollMs });

  return {
    id: 'fullenrich',
    needs: ['name', 'organization'],
    gives: ['professional', 'personal'],
    repeatIsFree: false,
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
      return stepOfSubmit(await post(base, headers, job, signal), pending, pollMs);
    },

    async poll(jobRef, _subject, signal) {
      const answer = await get(`${base}/${encodeURIComponent(jobRef)}`, headers, signal);
      return stepOfPoll(answer, pending(jobRef), pollMs);
    },
  };
}

function typesOf(wantedType: WantedType): EmailType[] {
  return wantedType === 'any' ? ['professional', 'personal'] : [wantedType];
}

function stepOfSubmit(
  answer: HttpAnswer | NoAnswer,
  pending: (jobRef: string) => Step,
  pollMs: number,
): Step {
  if (typeof answer === 'string') return noAnswer(answer);
  switch (answer.status) {
    case 200:
      return stepOfBody(answer, (body) => pending(jobRefOf(at(body, 'enrichment_id'))));
    case 400:
      return stepOfBody(answer, (body) => {
        const need = REFUSED.get(requiredText(at(body, 'code')));
        return need ? { kind: 'skip', missing: [need] } : protocol('code');
      });
    case 429:
      return limited(answer, pollMs);
    default:
      return stepOfStatus(answer);
  }
}

/** "Too many requests. Try again in 1m": it never sends a Retry-After. */
function limited({ headers }: HttpAnswer, pollMs: number): Step {
  return { kind: 'retry', why: 'rate_limit', afterMs: retryAfterMs(headers) ?? pollMs };
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

function stepOfPoll(answer: HttpAnswer | NoAnswer, pending: Step, pollMs: number): Step {
  if (typeof answer === 'string') return noAnswer(answer);
  switch (answer.status) {
    case 200:
      return stepOfBody(answer, (body) => stepOfResult(parseResult(body), pending, pollMs));
    case 400:
      return stepOfBody(answer, (body) =>
        textOf(at(body, 'code')) === 'error.enrichment.in_progress' ? pending : protocol('code'),
      );
    case 402: {
      const step = stepOfBody(answer, (body) => stepOfResult(parseResult(body), pending, pollMs));
      return step.kind === 'found' ? step : { kind: 'fatal', why: 'credits' };
    }
    case 404:
      return stepOfNotFound(answer, GIVEN_UP);
    case 429:
      return limited(answer, pollMs);
    default:
      return stepOfStatus(answer);
  }
}

function stepOfResult(result: EnrichmentResult, pending: Step, pollMs: number): Step {
  const { status, candidates, identity } = result;
  const credits = result.credits === null ? {} : { credits: result.credits };
  switch (status) {
    case 'FINISHED':
      return candidates.length > 0
        ? { kind: 'found', candidates, identity, ...credits }
        : { kind: 'miss', reason: 'no_email', ...credits };
    case 'CREDITS_INSUFFICIENT':
      // What was found before they ran out is paid for.
      return candidates.length > 0
        ? { kind: 'found', candidates, identity, ...credits }
        : { kind: 'fatal', why: 'credits' };
    case 'CANCELED':
      return GIVEN_UP;
    case 'RATE_LIMIT':
      return { kind: 'retry', why: 'rate_limit', afterMs: pollMs };
    default:
      // CREATED, IN_PROGRESS, UNKNOWN and words not seen yet: no word that it has ended.
      return pending;
  }
}
