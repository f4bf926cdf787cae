import { type HttpAnswer, inBody, jsonApi, protocol, retryAfterMs } from '../http/client.ts';
import type { Field } from '../http/fields.ts';
import {
  askingByEmployer,
  candidatesOf,
  identityOf,
  type Step,
  stepBy,
  stepOfCandidates,
  type Vendor,
  type VendorFacts,
  type VendorOptions,
} from './vendor.ts';

export const PROSPEO = {
  id: 'prospeo',
  url: 'https://api.prospeo.io',
  callMs: 30_000,
  needs: ['name', 'organization'],
  gives: ['professional'],
  isDated: false,
  repeatIsFree: true,
  capMs: 45_000,
  rates: [{ calls: 5, perMs: 1000 }],
} as const satisfies VendorFacts;

/**
 * Prospeo's enrich-person by name and place of work (prospeo.io/api-docs/enrich-person). A match
 * costs one credit, once in the lifetime of the account. Errors come as 400 with a code, so bodies
 * are read before statuses.
 */
export function createProspeo({ baseUrl, apiKey, callMs = PROSPEO.callMs }: VendorOptions): Vendor {
  const ask = jsonApi(baseUrl, { 'X-KEY': apiKey }, callMs);
  return askingByEmployer({ ...PROSPEO, callMs }, ({ first, last, domain, company }, signal) => {
    const data = {
      first_name: first,
      last_name: last,
      // "Submit everything you have": a company's name alone is shared by many.
      ...(domain ? { company_website: domain } : {}),
      ...(company ? { company_name: company } : {}),
    };
    return ask({ path: '/enrich-person', json: { only_verified_email: true, data } }, signal, read);
  });
}

const readBody = inBody((body, answer) =>
  body.at('error').requiredFlag() ? stepOfError(body.at('error_code'), answer) : stepOfMatch(body),
);
const read = stepBy({ 200: readBody, 400: readBody, 429: limited });

const NO_MATCH: Step = { kind: 'miss', reason: 'no_match', credits: 0 };

/** What its codes mean, but for the two that are about its rates and its own trouble. */
const ERRORS: ReadonlyMap<string, Step> = new Map<string, Step>([
  // Also if the person has no verified address, because only those are asked for.
  ['NO_MATCH', NO_MATCH],
  // "The datapoints […] to identify the person" are too few for it: names it cannot read, a website
  // it refuses.
  ['INVALID_DATAPOINTS', { kind: 'skip', missing: ['name', 'organization'] }],
  ['INSUFFICIENT_CREDITS', { kind: 'fatal', why: 'credits' }],
  ['INVALID_API_KEY', { kind: 'fatal', why: 'auth' }],
  ['ACCOUNT_RESTRICTED', { kind: 'fatal', why: 'plan' }],
]);

function stepOfError(code: Field, answer: HttpAnswer): Step {
  const word = code.requiredText();
  if (word === 'RATE_LIMITED' || word === 'RATE_LIMIT_EXCEEDED') return limited(answer);
  if (word === 'INTERNAL_ERROR')
    return { kind: 'retry', why: 'upstream', afterMs: retryAfterMs(answer.headers) };
  return ERRORS.get(word) ?? protocol(code.path);
}

/** Its own headers say when the minute or, with nothing left of it, the day of 24 hours is over. */
function limited({ headers }: HttpAnswer): Step {
  const window = headers.get('x-daily-request-left')?.trim() === '0' ? 'daily' : 'minute';
  const afterMs = retryAfterMs(headers) ?? retryAfterMs(headers, `x-${window}-reset-seconds`);
  return { kind: 'retry', why: 'rate_limit', afterMs };
}

function stepOfMatch(body: Field): Step {
  const found = body.at('person').present();
  if (found.isAbsent) return NO_MATCH;
  const person = found.object();
  const email = person.at('email').present();
  const location = person.at('location');
  const credits = body.at('free_enrichment').flag() ? 0 : 1;
  const identity = identityOf({
    first: person.at('first_name'),
    last: person.at('last_name'),
    full: person.at('full_name'),
    state: location.at('state'),
    country: location.at('country_code'),
  });
  if (email.isAbsent) return { kind: 'miss', reason: 'no_email', credits };
  // `revealed` is no promise: the vendor's own example is revealed, and masked all the same.
  const address = email.at('email').present();
  if (!email.at('revealed').requiredFlag() || address.text()?.includes('*')) {
    return { kind: 'miss', reason: 'email_masked', credits };
  }
  // Only VERIFIED is documented; the vendor's own client knows UNVERIFIED beside it.
  const verdict = email.at('status').present().word() === 'verified' ? 'valid' : 'unknown';
  const claim = { email: address, vendorType: 'professional', verdict, validatedAt: null } as const;
  // The profile that it matched is its own.
  return stepOfCandidates({ candidates: candidatesOf([claim]), identity, isEcho: false, credits });
}
