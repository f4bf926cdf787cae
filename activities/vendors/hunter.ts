import { inBody, jsonApi, protocol, retryAfterMs } from '../http/client.ts';
import type { Field } from '../http/fields.ts';
import { candidatesOf, identityOf, stepOfCandidates, timestampOf } from './responses.ts';
import {
  askingByEmployer,
  type Step,
  stepBy,
  unlessPage,
  type Vendor,
  type VendorFacts,
  type VendorOptions,
  type Verdict,
} from './vendor.ts';

export const HUNTER = {
  id: 'hunter',
  url: 'https://api.hunter.io/v2',
  callMs: 30_000,
  needs: ['name', 'organization'],
  gives: ['professional'],
  isDated: true,
  repeatIsFree: false,
  capMs: 45_000,
  rates: [
    { calls: 15, perMs: 1000 },
    { calls: 500, perMs: 60_000 },
  ],
} as const satisfies VendorFacts;

/**
 * If a search takes longer than this, the vendor responds with a 202. This limit is shorter than
 * our timeout of a call.
 */
const MAX_DURATION_SECONDS = '20';
/** The wait in milliseconds before a request is repeated after a 202. */
const REPEAT_MS = 5000;
/** A lookup without a result is free, according to the vendor's documentation. */
const NO_EMAIL = { kind: 'miss', reason: 'no_email', credits: 0 } as const satisfies Step;

/** Maps `verification.status`. `webmail` and `unknown` say nothing about the mailbox. */
const VERDICTS: ReadonlyMap<string, Verdict> = new Map([
  ['valid', 'valid'],
  ['invalid', 'invalid'],
  ['accept_all', 'catch_all'],
  ['disposable', 'invalid'],
]);

/**
 * Creates the adapter of Hunter's Email Finder, version 2, which searches by name and employer
 * (hunter.io/api-documentation/v2, read in November 2026; its OpenAPI, operation `emailFinder`). It
 * allows 15 calls a second and 500 a minute. An address costs one credit. Its statuses are special:
 * 202 asks us to repeat the request, 403 means that the rate limit is exceeded, 429 means that the
 * quota is used up, and 451 means that the person asked not to be processed.
 */
export function createHunter(options: VendorOptions): Vendor {
  const { baseUrl, apiKey, callMs = HUNTER.callMs } = options;
  // The key goes in a header. The vendor also accepts it in the query, where proxies would log it.
  const ask = jsonApi(baseUrl, { 'X-API-KEY': apiKey }, callMs);
  return askingByEmployer(
    { ...HUNTER, callMs },
    ({ first, last, domain, company }, signal) => {
      const query = new URLSearchParams();
      // If we send both, the vendor uses the domain.
      if (domain) query.set('domain', domain);
      if (company) query.set('company', company);
      query.set('first_name', first);
      query.set('last_name', last);
      query.set('max_duration', MAX_DURATION_SECONDS);
      return ask({ path: `/email-finder?${query}` }, signal, read);
    },
  );
}

const read = stepBy({
  200: inBody(stepOfFound),
  // The response has no job ID, because the poll repeats the request.
  202: ({ headers }) => ({
    kind: 'pending',
    jobRef: '',
    pollAfterMs: retryAfterMs(headers) ?? REPEAT_MS,
  }),
  400: inBody(stepOfRefusal),
  403: ({ headers }) => ({
    kind: 'retry',
    why: 'rate_limit',
    afterMs: retryAfterMs(headers),
  }),
  404: unlessPage(NO_EMAIL),
  429: { kind: 'fatal', why: 'credits' },
});

function stepOfFound(body: Field): Step {
  const data = body.at('data').object();
  const email = data.at('email').present();
  if (email.text() === null) return NO_EMAIL;
  const verification = data.at('verification').present();
  // From 0 to 100: how sure the vendor is of the address.
  const score = data.at('score').number();
  const claim = {
    email,
    vendorType: 'professional',
    verdict: verdictOf(verification, data.at('accept_all')),
    validatedAt: timestampOf(verification.at('date').text()),
    isCurrent: false,
    confidence: score === null ? null : score / 100,
  } as const;
  return stepOfCandidates({
    candidates: candidatesOf([claim]),
    identity: identityOf({
      first: data.at('first_name'),
      last: data.at('last_name'),
      employerDomain: data.at('domain'),
    }),
    // The vendor derives the address from the name in our request, and returns the same name.
    repeatsInput: true,
    credits: 1,
  });
}

function verdictOf(verification: Field, acceptAll: Field): Verdict {
  // The verification is null if the address was never verified.
  if (verification.isAbsent) return 'unknown';
  const status = verification.at('status').present().word();
  // On a domain that accepts all mail, "valid" says nothing about this mailbox.
  if (status === 'valid' && acceptAll.flag()) return 'catch_all';
  return VERDICTS.get(status) ?? 'unknown';
}

/**
 * Reads "A supplied parameter was invalid". We always send all parameters, so this person's name or
 * domain is invalid.
 */
function stepOfRefusal(body: Field): Step {
  const [first] = body.at('errors').items();
  if (first?.at('id').text() !== 'wrong_params') {
    return protocol('errors[0].id');
  }
  return { kind: 'skip', missing: ['name', 'organization'] };
}
