import {
  type HttpResponse,
  inBody,
  jsonApi,
  protocol,
  retryAfterMs,
} from '../http/client.ts';
import type { Field } from '../http/fields.ts';
import { candidatesOf, identityOf, stepOfCandidates } from './responses.ts';
import {
  askingByEmployer,
  type Identity,
  type Step,
  stepBy,
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
  // The rate limits of the smallest plan.
  rates: [
    { calls: 5, perMs: 1000 },
    { calls: 300, perMs: 60_000 },
    { calls: 2000, perMs: 86_400_000 },
  ],
} as const satisfies VendorFacts;

/**
 * Creates the adapter of Prospeo's enrich-person API, which searches by name and employer. The
 * sources, read in November 2026, are prospeo.io/api-docs/enrich-person and "API Rate Limits" at
 * help.prospeo.io. A match costs one credit, and repeating it is free for the lifetime of the
 * account. Errors arrive as a 400 with a code in the body, so the code decides and not the status.
 */
export function createProspeo(options: VendorOptions): Vendor {
  const { baseUrl, apiKey, callMs = PROSPEO.callMs } = options;
  const ask = jsonApi(baseUrl, { 'X-KEY': apiKey }, callMs);
  return askingByEmployer(
    { ...PROSPEO, callMs },
    ({ first, last, domain, company }, signal) => {
      const data = {
        first_name: first,
        last_name: last,
        // The documentation says "Submit everything you have". A name is often not enough, because
        // several companies may share it.
        company_website: domain || undefined,
        company_name: company || undefined,
      };
      const json = { only_verified_email: true, data };
      return ask({ path: '/enrich-person', json }, signal, read);
    },
  );
}

const readBody = inBody((body, response) => {
  if (body.at('error').requiredFlag())
    return stepOfError(body.at('error_code'), response);
  return stepOfMatch(body);
});
const read = stepBy({ 200: readBody, 400: readBody, 429: limited });

const NO_MATCH: Step = { kind: 'miss', reason: 'no_match', credits: 0 };

/** Maps the vendor's error codes, except its rate limits and internal errors. */
const ERRORS: ReadonlyMap<string, Step> = new Map<string, Step>([
  // The vendor also sends this code for a person without a verified address, because we request
  // only verified addresses.
  ['NO_MATCH', NO_MATCH],
  // The vendor cannot identify a person from our data. It can't read the name, or it rejects the
  // website.
  ['INVALID_DATAPOINTS', { kind: 'skip', missing: ['name', 'organization'] }],
  ['INSUFFICIENT_CREDITS', { kind: 'fatal', why: 'credits' }],
  ['INVALID_API_KEY', { kind: 'fatal', why: 'auth' }],
  ['ACCOUNT_RESTRICTED', { kind: 'fatal', why: 'plan' }],
]);

function stepOfError(code: Field, response: HttpResponse): Step {
  const word = code.requiredText();
  if (word === 'RATE_LIMITED' || word === 'RATE_LIMIT_EXCEEDED') {
    return limited(response);
  }
  if (word === 'INTERNAL_ERROR') {
    return { kind: 'retry', why: 'upstream', afterMs: retryAfterMs(response.headers) };
  }
  return ERRORS.get(word) ?? protocol(code.path);
}

/**
 * Retries at the time that the vendor's own headers name: the end of the minute, or the end of the
 * 24-hour day when the daily quota is used up.
 */
function limited({ headers }: HttpResponse): Step {
  const isDailyUsedUp = headers.get('x-daily-request-left')?.trim() === '0';
  const window = isDailyUsedUp ? 'daily' : 'minute';
  const resetMs = retryAfterMs(headers, `x-${window}-reset-seconds`);
  const afterMs = retryAfterMs(headers) ?? resetMs;
  return { kind: 'retry', why: 'rate_limit', afterMs };
}

function stepOfMatch(body: Field): Step {
  const found = body.at('person').present();
  if (found.isAbsent) return NO_MATCH;
  const person = found.object();
  const email = person.at('email').present();
  const credits = body.at('free_enrichment').flag() ? 0 : 1;
  const identity = identityOfPerson(person, body.at('company'));
  if (email.isAbsent) {
    return { kind: 'miss', reason: 'no_email', credits };
  }
  const masked = { kind: 'miss', reason: 'email_masked', credits } as const;
  if (!email.at('revealed').requiredFlag()) return masked;
  // `revealed` is not reliable: in the vendor's own example a revealed address is masked.
  const address = email.at('email').present();
  if (address.text()?.includes('*')) return masked;
  // Only VERIFIED is documented. The vendor's own client also knows UNVERIFIED.
  const isVerified = email.at('status').present().word() === 'verified';
  const candidates = candidatesOf([
    {
      email: address,
      vendorType: 'professional',
      verdict: isVerified ? 'valid' : 'unknown',
      validatedAt: null,
      isCurrent: false,
      confidence: null,
    },
  ]);
  // The identity comes from the vendor's own profile, not from our input.
  return stepOfCandidates({ candidates, identity, repeatsInput: false, credits });
}

function identityOfPerson(person: Field, company: Field): Identity {
  const location = person.at('location');
  return identityOf({
    first: person.at('first_name'),
    last: person.at('last_name'),
    full: person.at('full_name'),
    state: location.at('state'),
    country: location.at('country_code'),
    employerDomain: company.at('domain'),
  });
}
