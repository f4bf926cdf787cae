import type { EmailType, WantedType } from '../../db/words.ts';
import { get, type HttpAnswer, type NoAnswer } from '../http/client.ts';
import { at, type Field, items } from '../http/fields.ts';
import { type Profile, parseProfile } from './rocketreach-profile.ts';
import { GIVEN_UP, noAnswer, stepOfBody, stepOfNotFound, stepOfStatus } from './steps.ts';
import type { Candidate, Provider, Step, VendorFacts } from './vendor.ts';

export const ROCKETREACH = {
  url: 'https://api.rocketreach.co/api/v2',
  capMs: 120_000,
  rates: [{ calls: 10, perMs: 1000 }],
} as const satisfies VendorFacts;

export interface RocketReachOptions {
  /** Up to and including the version. */
  readonly baseUrl: string;
  readonly apiKey: string;
  /** Which of its two person APIs the account has: newer accounts pay in universal credits. */
  readonly api: RocketReachApi;
}

export const ROCKETREACH_APIS = ['legacy', 'universal'] as const;
export type RocketReachApi = (typeof ROCKETREACH_APIS)[number];

/** "Poll about every 3 seconds"; polls are free, but count for the account's 10 requests a second. */
const POLL_MS = 3000;
const MIN_POLL_MS = 100;
const MAX_POLL_MS = 60_000;

/** Universal credits for a verified profile of each type (docs.rocketreach.co, "Universal credits overview"). */
const UNIVERSAL_CREDITS: Readonly<Record<EmailType, number>> = { professional: 2, personal: 3 };

interface Api {
  readonly lookupPath: string;
  readonly statusPath: string;
  /** What is asked for, beside the NPI. */
  query(wantedType: WantedType): Readonly<Record<string, string>>;
  /** The credits of addresses of these types. */
  cost(types: ReadonlySet<EmailType>): number;
}

const APIS: Readonly<Record<RocketReachApi, Api>> = {
  legacy: {
    lookupPath: '/person/lookup',
    statusPath: '/person/checkStatus',
    query: () => ({ lookup_type: 'standard' }),
    cost: () => 1,
  },
  universal: {
    lookupPath: '/universal/person/lookup',
    statusPath: '/universal/person/check_status',
    // The NPI in the answer would cost one more (`reveal_healthcare_enrichment`); its name and state are free.
    query: (wantedType) =>
      Object.fromEntries([...typesOf(wantedType)].map((type) => [`reveal_${type}_email`, 'true'])),
    cost: (types) => [...types].reduce((sum, type) => sum + UNIVERSAL_CREDITS[type], 0),
  },
};

/**
 * RocketReach's people lookup, version 2, by NPI (docs.rocketreach.co; its OpenAPI, operations
 * `create_person_lookup` and `check_person_lookup_status`, or the two of the same names with `universal`).
 *
 * The vendor has no idempotency key: every `submit` may be charged again, `poll` never is. An answer of 200 that
 * cannot be read is therefore `fatal` `protocol` and not `retry`: asking again would pay again for an answer of
 * the same form. What a failing server or gateway (5xx) writes is never read and always `retry`.
 */
export function createRocketReach({ baseUrl, apiKey, api }: RocketReachOptions): Provider {
  const base = baseUrl.replace(/\/+$/, '');
  const headers = { 'Api-Key': apiKey, accept: 'application/json' };
  const { lookupPath, statusPath, query, cost } = APIS[api];
  const read = (profile: Field) => stepOfProfile(parseProfile(profile), cost);

  return {
    id: 'rocketreach',
    needs: ['npi'],
    gives: ['professional', 'personal'],
    repeatIsFree: false,
    cost: (wantedType) => cost(typesOf(wantedType)),

    async submit({ npi, wantedType }, signal) {
      const parameters = new URLSearchParams({
        npi_number: npi,
        ...query(wantedType),
        // Cached addresses come unverified; without them the lookup answers once all are verified.
        return_cached_emails: 'false',
      });
      const answer = await get(`${base}${lookupPath}?${parameters}`, headers, signal);
      return stepOf(answer, { kind: 'miss', reason: 'no_profile', credits: 0 }, read);
    },

    async poll(jobRef, _subject, signal) {
      const parameters = new URLSearchParams({ ids: jobRef });
      const answer = await get(`${base}${statusPath}?${parameters}`, headers, signal);
      // One profile for each id it knows: a lookup it has forgotten is no word about the person.
      return stepOf(answer, GIVEN_UP, (profiles) => {
        const profile = items(profiles).find((item) => String(at(item, 'id').value) === jobRef);
        return profile ? read(profile) : GIVEN_UP;
      });
    },
  };
}

function typesOf(wantedType: WantedType): ReadonlySet<EmailType> {
  return new Set(wantedType === 'any' ? ['professional', 'personal'] : [wantedType]);
}

function stepOf(answer: HttpAnswer | NoAnswer, notFound: Step, read: (body: Field) => Step): Step {
  if (typeof answer === 'string') return noAnswer(answer);
  switch (answer.status) {
    case 200:
      return stepOfBody(answer, read);
    case 404:
      return stepOfNotFound(answer, notFound);
    default:
      return stepOfStatus(answer);
  }
}

function stepOfProfile(
  { id, status, identity, candidates, retryAfterSeconds }: Profile,
  cost: Api['cost'],
): Step {
  if (status === 'failed') return GIVEN_UP;
  if (status !== 'complete') {
    // "A status other than complete indicates the lookup is not finished": words not seen yet included.
    return { kind: 'pending', jobRef: String(id), pollAfterMs: pollAfterMs(retryAfterSeconds) };
  }
  if (candidates.length === 0) return { kind: 'miss', reason: 'no_email' };
  return { kind: 'found', candidates, identity, credits: cost(foundTypes(candidates)) };
}

/** An address whose type the vendor does not say is charged as a professional one at least. */
function foundTypes(candidates: readonly Candidate[]): ReadonlySet<EmailType> {
  return new Set(candidates.map(({ vendorType }) => vendorType ?? 'professional'));
}

function pollAfterMs(retryAfterSeconds: number | null): number {
  if (retryAfterSeconds === null) return POLL_MS;
  return Math.round(Math.min(Math.max(retryAfterSeconds * 1000, MIN_POLL_MS), MAX_POLL_MS));
}
