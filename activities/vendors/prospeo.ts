import { type HttpAnswer, jsonApi, protocol, retryAfterMs, secondsMs, stepOfBody } from '../http/client.ts';
import {
  at,
  type Field,
  flagOf,
  isAbsent,
  objectAt,
  present,
  requiredFlag,
  requiredText,
  textOf,
  wordOf,
} from '../http/fields.ts';
import { usState } from '../person/us-states.ts';
import { candidatesOf, nameOf } from './candidate.ts';
import {
  askingNextEmployer,
  employeeOf,
  type Step,
  stepOfVendorStatus,
  type Vendor,
  type VendorFacts,
  type VendorOptions,
} from './vendor.ts';

export const PROSPEO = {
  id: 'prospeo',
  document: 'https://prospeo.io/api-docs/enrich-person',
  url: 'https://api.prospeo.io',
  callMs: 30_000,
  needs: ['name', 'organization'],
  gives: ['professional'],
  isDated: false,
  repeatIsFree: true,
  mayStore: true,
  capMs: 45_000,
  rates: [{ calls: 5, perMs: 1000 }],
} as const satisfies VendorFacts;

/**
 * Prospeo's enrich-person by name and place of work (prospeo.io/api-docs/enrich-person). A match costs one credit,
 * once in the lifetime of the account. Errors come as 400 with a code, so bodies are read before statuses.
 */
export function createProspeo({ baseUrl, apiKey, callMs = PROSPEO.callMs }: VendorOptions): Vendor {
  const api = jsonApi(baseUrl, { 'X-KEY': apiKey }, callMs);

  const submit: Vendor['submit'] = async (subject, signal) => {
    const employee = employeeOf(subject);
    if (employee.kind === 'skip') return employee;
    const data = {
      first_name: employee.first,
      last_name: employee.last,
      // "Submit everything you have": a company's name alone is shared by many.
      ...(employee.domain ? { company_website: employee.domain } : {}),
      ...(employee.company ? { company_name: employee.company } : {}),
    };
    return await api.post('/enrich-person', { only_verified_email: true, data }, signal, stepOf);
  };

  return askingNextEmployer({
    ...PROSPEO,
    callMs,
    cost: () => 1,
    submit,
    // It never answers `pending`; asked again, it answers the same at no cost.
    poll: (_jobRef, subject, signal) => submit(subject, signal),
  });
}

function stepOf(answer: HttpAnswer): Step {
  switch (answer.status) {
    case 200:
    case 400:
      return stepOfBody(answer, (body) =>
        requiredFlag(at(body, 'error')) ? stepOfError(at(body, 'error_code'), answer) : stepOfMatch(body),
      );
    case 429:
      return limited(answer);
    default:
      return stepOfVendorStatus(answer);
  }
}

/** What its codes mean, but for the two that are about its rates and its own trouble. */
const ERRORS: ReadonlyMap<string, Step> = new Map([
  // Also if the person has no verified address, because only those are asked for.
  ['NO_MATCH', { kind: 'miss', reason: 'no_match', credits: 0 }],
  // "The datapoints […] to identify the person" are too few for it: names it cannot read, a website it refuses.
  ['INVALID_DATAPOINTS', { kind: 'skip', missing: ['name', 'organization'] }],
  ['INSUFFICIENT_CREDITS', { kind: 'fatal', why: 'credits' }],
  ['INVALID_API_KEY', { kind: 'fatal', why: 'auth' }],
  ['ACCOUNT_RESTRICTED', { kind: 'fatal', why: 'plan' }],
]);

function stepOfError(code: Field, answer: HttpAnswer): Step {
  const word = requiredText(code);
  if (word === 'RATE_LIMITED' || word === 'RATE_LIMIT_EXCEEDED') return limited(answer);
  if (word === 'INTERNAL_ERROR')
    return { kind: 'retry', why: 'upstream', afterMs: retryAfterMs(answer.headers) };
  return ERRORS.get(word) ?? protocol(code.path);
}

/** Its own headers say when the minute or, with nothing left of it, the day of 24 hours is over. */
function limited({ headers }: HttpAnswer): Step {
  const window = headers.get('x-daily-request-left')?.trim() === '0' ? 'daily' : 'minute';
  const afterMs = retryAfterMs(headers) ?? secondsMs(headers.get(`x-${window}-reset-seconds`));
  return { kind: 'retry', why: 'rate_limit', afterMs };
}

function stepOfMatch(body: Field): Step {
  const person = objectAt(body, 'person');
  const email = present(at(person, 'email'));
  const location = at(person, 'location');
  const credits = flagOf(at(body, 'free_enrichment')) ? 0 : 1;
  const identity = {
    npi: null,
    name: nameOf(at(person, 'first_name'), at(person, 'last_name'), at(person, 'full_name')),
    state: usState(textOf(at(location, 'state')), textOf(at(location, 'country_code'))),
  };
  if (isAbsent(email)) return { kind: 'miss', reason: 'no_email', credits };
  // `revealed` is no promise: the vendor's own example is revealed, and masked all the same.
  const address = present(at(email, 'email'));
  if (!requiredFlag(at(email, 'revealed')) || textOf(address)?.includes('*')) {
    return { kind: 'miss', reason: 'email_masked', credits };
  }
  // Only VERIFIED is documented; the vendor's own client knows UNVERIFIED beside it.
  const verdict = wordOf(present(at(email, 'status'))) === 'verified' ? 'valid' : 'unknown';
  const candidates = candidatesOf([[address, { type: 'professional', verdict, validatedAt: null }]]);
  return candidates.length > 0
    ? // The profile that it matched is its own.
      { kind: 'found', candidates, identity, isEcho: false, credits }
    : { kind: 'miss', reason: 'no_email', credits };
}
