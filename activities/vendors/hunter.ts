import { type HttpAnswer, jsonApi, protocol, retryAfterMs, stepOfBody } from '../http/client.ts';
import {
  at,
  type Field,
  flagOf,
  isAbsent,
  items,
  objectAt,
  present,
  textOf,
  wordOf,
} from '../http/fields.ts';
import { candidatesOf, nameOf, timestampOf } from './candidate.ts';
import {
  askingNextEmployer,
  type Employee,
  employeeOf,
  type Step,
  stepOfNotFound,
  stepOfVendorStatus,
  type Vendor,
  type VendorFacts,
  type VendorOptions,
  type Verdict,
} from './vendor.ts';

export const HUNTER = {
  id: 'hunter',
  document: 'https://hunter.io/api-documentation/v2#email-finder',
  url: 'https://api.hunter.io/v2',
  callMs: 30_000,
  needs: ['name', 'organization'],
  gives: ['professional'],
  isDated: true,
  repeatIsFree: false,
  mayStore: true,
  capMs: 45_000,
  rates: [
    { calls: 15, perMs: 1000 },
    { calls: 500, perMs: 60_000 },
  ],
} as const satisfies VendorFacts;

/** The longest the vendor may think before it answers 202; below our own timeout of a call. */
const MAX_DURATION_SECONDS = '20';
/** After a 202. */
const REPEAT_MS = 5000;
/** It names no job: to poll is to repeat the question. */
const JOB_REF = 'email-finder';
/** "If a request returns no results", it does not count. */
const NO_EMAIL = { kind: 'miss', reason: 'no_email', credits: 0 } as const satisfies Step;

/** By `verification.status`; `webmail` and `unknown` say nothing of the mailbox. */
const VERDICTS: ReadonlyMap<string, Verdict> = new Map([
  ['valid', 'valid'],
  ['invalid', 'invalid'],
  ['accept_all', 'catch_all'],
  ['disposable', 'invalid'],
]);

/**
 * Hunter's Email Finder, version 2, by name and place of work (hunter.io/api-documentation/v2; its OpenAPI,
 * operation `emailFinder`). Its statuses are its own: 202 asks for the same question again, 403 is the rate limit,
 * 429 the used-up quota, 451 a person who asked not to be processed. One credit for an address found.
 */
export function createHunter({ baseUrl, apiKey, callMs = HUNTER.callMs }: VendorOptions): Vendor {
  // In a header: the vendor takes its key in the query as well, where proxies would log it.
  const api = jsonApi(baseUrl, { 'X-API-KEY': apiKey }, callMs);

  const ask: Vendor['submit'] = async (subject, signal) => {
    const employee = employeeOf(subject);
    if (employee.kind === 'skip') return employee;
    return await api.get(`/email-finder?${queryOf(employee)}`, signal, stepOf);
  };

  return askingNextEmployer({
    ...HUNTER,
    callMs,
    cost: () => 1,
    submit: ask,
    poll: (_jobRef, subject, signal) => ask(subject, signal),
  });
}

/** Both names of the employer if both are known: the domain decides, the company's name is for the rest. */
function queryOf({ first, last, domain, company }: Employee): URLSearchParams {
  return new URLSearchParams({
    ...(domain ? { domain } : {}),
    ...(company ? { company } : {}),
    first_name: first,
    last_name: last,
    max_duration: MAX_DURATION_SECONDS,
  });
}

function stepOf(answer: HttpAnswer): Step {
  const { status, headers } = answer;
  switch (status) {
    case 200:
      return stepOfBody(answer, stepOfFound);
    case 202:
      return { kind: 'pending', jobRef: JOB_REF, pollAfterMs: retryAfterMs(headers) ?? REPEAT_MS };
    case 400:
      return stepOfBody(answer, stepOfRefusal);
    case 403:
      return { kind: 'retry', why: 'rate_limit', afterMs: retryAfterMs(headers) };
    case 404:
      return stepOfNotFound(answer, NO_EMAIL);
    case 429:
      return { kind: 'fatal', why: 'credits' };
    default:
      return stepOfVendorStatus(answer);
  }
}

function stepOfFound(body: Field): Step {
  const data = objectAt(body, 'data');
  const email = present(at(data, 'email'));
  if (textOf(email) === null) return NO_EMAIL;
  const verification = present(at(data, 'verification'));
  // Null if the address was never verified.
  const status = isAbsent(verification) ? '' : wordOf(present(at(verification, 'status')));
  const verdict = VERDICTS.get(status) ?? 'unknown';
  const claim = {
    type: 'professional',
    // A domain that takes everything makes "valid" say nothing of this mailbox.
    verdict: verdict === 'valid' && flagOf(at(data, 'accept_all')) ? 'catch_all' : verdict,
    validatedAt: timestampOf(textOf(at(verification, 'date'))),
  } as const;
  const candidates = candidatesOf([[email, claim]]);
  if (candidates.length === 0) return { kind: 'miss', reason: 'no_email', credits: 1 };
  const name = nameOf(at(data, 'first_name'), at(data, 'last_name'), null);
  // It makes an address of the name that it is asked about, and gives that name back.
  const identity = { npi: null, name, state: null };
  return { kind: 'found', candidates, identity, isEcho: true, credits: 1 };
}

/** "A supplied parameter was invalid": all are always supplied, so it is this person's name or domain. */
function stepOfRefusal(body: Field): Step {
  const [first] = items(at(body, 'errors'));
  const id = first ? textOf(at(first, 'id')) : null;
  return id === 'wrong_params'
    ? { kind: 'skip', missing: ['name', 'organization'] }
    : protocol('errors[0].id');
}
