import { EMAIL_TYPES, type EmailType, type WantedType } from '../../db/words.ts';
import { type HttpAnswer, jsonApi, stepOfBody } from '../http/client.ts';
import {
  at,
  type Field,
  FieldError,
  items,
  numberOf,
  present,
  requiredText,
  scalarOf,
  textOf,
  wordOf,
} from '../http/fields.ts';
import { usState } from '../person/us-states.ts';
import { type Claim, candidatesOf, nameOf, timestampOf } from './candidate.ts';
import {
  type Candidate,
  GIVEN_UP,
  type Step,
  stepOfNotFound,
  stepOfVendorStatus,
  typesOf,
  type Vendor,
  type VendorFacts,
  type VendorOptions,
  type Verdict,
} from './vendor.ts';

export const ROCKETREACH = {
  id: 'rocketreach',
  document: 'https://docs.rocketreach.co',
  url: 'https://api.rocketreach.co/api/v2',
  callMs: 30_000,
  needs: ['npi'],
  gives: ['professional', 'personal'],
  isDated: true,
  repeatIsFree: false,
  mayStore: true,
  capMs: 120_000,
  rates: [{ calls: 10, perMs: 1000 }],
} as const satisfies VendorFacts;

export interface RocketReachOptions extends VendorOptions {
  /** Which of its two person APIs the account has: newer accounts pay in universal credits. */
  readonly api: RocketReachApi;
}

/** "Poll about every 3 seconds"; polls are free, but count for the account's 10 requests a second. */
const POLL_MS = 3000;
const MIN_POLL_MS = 100;
const MAX_POLL_MS = 60_000;

/** Universal credits for a verified profile of each type (docs.rocketreach.co, "Universal credits overview"). */
const UNIVERSAL_CREDITS: Readonly<Record<EmailType, number>> = { professional: 2, personal: 3 };

/** The two: what is asked for beside the NPI, and the credits of addresses of these types. */
const APIS = {
  legacy: {
    lookupPath: '/person/lookup',
    statusPath: '/person/checkStatus',
    query: (_wantedType: WantedType) => ({ lookup_type: 'standard' }),
    cost: (_types: ReadonlySet<EmailType>) => 1,
  },
  universal: {
    lookupPath: '/universal/person/lookup',
    statusPath: '/universal/person/check_status',
    // The NPI in the answer would cost one more (`reveal_healthcare_enrichment`); its name and state are free.
    query: (wantedType: WantedType) =>
      Object.fromEntries(typesOf(wantedType).map((type) => [`reveal_${type}_email`, 'true'])),
    cost: (types: ReadonlySet<EmailType>) =>
      [...types].reduce((sum, type) => sum + UNIVERSAL_CREDITS[type], 0),
  },
};
export type RocketReachApi = keyof typeof APIS;
export const ROCKETREACH_APIS = Object.keys(APIS) as RocketReachApi[];

/**
 * RocketReach's people lookup, version 2, by NPI (docs.rocketreach.co; its OpenAPI, operations
 * `create_person_lookup` and `check_person_lookup_status`, or the two of the same names with `universal`).
 *
 * The vendor has no idempotency key: every `submit` may be charged again, `poll` never is. An answer of 200 that
 * cannot be read is therefore `fatal` `protocol` and not `retry`: asking again would pay again for an answer of
 * the same form. What a failing server or gateway (5xx) writes is never read and always `retry`.
 */
export function createRocketReach({
  baseUrl,
  apiKey,
  callMs = ROCKETREACH.callMs,
  api,
}: RocketReachOptions): Vendor {
  const http = jsonApi(baseUrl, { 'Api-Key': apiKey }, callMs);
  const { lookupPath, statusPath, query, cost } = APIS[api];
  const read = (profile: Field) => stepOfProfile(parseProfile(profile), cost);

  return {
    ...ROCKETREACH,
    callMs,
    cost: (wantedType) => cost(new Set(typesOf(wantedType))),

    async submit({ npi, wantedType }, signal) {
      const parameters = new URLSearchParams({
        npi_number: npi,
        ...query(wantedType),
        // Cached addresses come unverified; without them the lookup answers once all are verified.
        return_cached_emails: 'false',
      });
      return await http.get(`${lookupPath}?${parameters}`, signal, (answer) =>
        stepOf(answer, { kind: 'miss', reason: 'no_profile', credits: 0 }, read),
      );
    },

    async poll(jobRef, _subject, signal) {
      const parameters = new URLSearchParams({ ids: jobRef });
      // One profile for each id it knows: a lookup it has forgotten is no word about the person.
      const readOwn = (profiles: Field) => {
        const profile = items(profiles).find((item) => String(at(item, 'id').value) === jobRef);
        return profile ? read(profile) : GIVEN_UP;
      };
      return await http.get(`${statusPath}?${parameters}`, signal, (answer) =>
        stepOf(answer, GIVEN_UP, readOwn),
      );
    },
  };
}

function stepOf(answer: HttpAnswer, notFound: Step, read: (body: Field) => Step): Step {
  switch (answer.status) {
    case 200:
      return stepOfBody(answer, read);
    case 404:
      return stepOfNotFound(answer, notFound);
    default:
      return stepOfVendorStatus(answer);
  }
}

function stepOfProfile(
  { id, status, identity, candidates, retryAfterSeconds }: ReturnType<typeof parseProfile>,
  cost: (types: ReadonlySet<EmailType>) => number,
): Step {
  if (status === 'failed') return GIVEN_UP;
  if (status !== 'complete') {
    // "A status other than complete indicates the lookup is not finished": words not seen yet included.
    return { kind: 'pending', jobRef: String(id), pollAfterMs: pollAfterMs(retryAfterSeconds) };
  }
  if (candidates.length === 0) return { kind: 'miss', reason: 'no_email' };
  // It was told the NPI alone, and has a name to it.
  const isEcho = identity.name === null;
  return { kind: 'found', candidates, identity, isEcho, credits: cost(foundTypes(candidates)) };
}

/** An address whose type the vendor does not say is charged as a professional one at least. */
function foundTypes(candidates: readonly Candidate[]): ReadonlySet<EmailType> {
  return new Set(candidates.map(({ vendorType }) => vendorType ?? 'professional'));
}

function pollAfterMs(retryAfterSeconds: number | null): number {
  if (retryAfterSeconds === null) return POLL_MS;
  return Math.round(Math.min(Math.max(retryAfterSeconds * 1000, MIN_POLL_MS), MAX_POLL_MS));
}

// RocketReach's OpenAPI: ProfileAPIWithMetadataCompiledCompany, UniversalCreditPersonLookupOutputWithMetadata and
// ProfileEmailAPI, as far as they are used.

/** By `smtp_valid`, which is what the mail server said; its hyphens and underscores come and go. */
const VERDICTS: ReadonlyMap<string, Verdict> = new Map([
  ['valid', 'valid'],
  ['invalid', 'invalid'],
  ['acceptall', 'catch_all'],
  ['catchall', 'catch_all'],
]);

/**
 * Reads one profile. Fields nobody reads may be anything; a field that is read and has a type the document does not
 * give it makes the whole profile unreadable, because what it means is then a guess.
 * @throws {FieldError}
 */
function parseProfile(profile: Field) {
  // In no document of the REST API, so its form is no one's promise.
  const { value: hint } = at(profile, 'retry_after_seconds');
  // `complete`, `progress`, `searching`, `not queued`; `failed` is documented for single records only.
  const status = requiredText(at(profile, 'status'));
  const emails = at(profile, 'emails');
  return {
    id: idOf(at(profile, 'id')),
    status,
    identity: {
      // A string by the document's schema, a number in its example. What is no NPI equals none that was asked for.
      npi: scalarOf(at(at(profile, 'npi_data'), 'npi_number')) || null,
      name: nameOf(null, null, at(profile, 'name')),
      state: usState(textOf(at(profile, 'region')), textOf(at(profile, 'country_code'))),
    },
    candidates: candidatesOf(
      // Null or absent while a lookup runs with `return_cached_emails=false`: then there are none yet.
      items(status === 'complete' ? present(emails) : emails).map(
        (entry) => [present(at(entry, 'email')), claimOf(entry)] as const,
      ),
    ),
    // The vendor's hint when to ask again.
    retryAfterSeconds: typeof hint === 'number' ? hint : null,
  };
}

function idOf(field: Field): number {
  const id = numberOf(field);
  if (id === null || !Number.isSafeInteger(id)) throw new FieldError(field);
  return id;
}

function claimOf(entry: Field): Claim {
  const type = wordOf(at(entry, 'type'));
  return {
    type: EMAIL_TYPES.find((one) => one === type) ?? null,
    verdict: judge(wordOf(present(at(entry, 'smtp_valid'))), type, wordOf(at(entry, 'grade'))),
    validatedAt: timestampOf(textOf(at(entry, 'last_validation_check'))),
  };
}

/**
 * `smtp_valid` decides (`inconclusive`, `unknown` and words not seen yet are `unknown`). Type and grade can only
 * lower it: a disposable mailbox is of no use, a role mailbox is not a person's, and F is the vendor's grade for an
 * address it gave up on. The better grades (A to D) weigh the likelihood that the address is this person's current
 * one, which is no word about the mailbox.
 */
function judge(smtpValid: string, type: string, grade: string): Verdict {
  const verdict = VERDICTS.get(smtpValid.replaceAll(/[-_]/g, '')) ?? 'unknown';
  if (verdict === 'invalid' || type === 'disposable' || grade.startsWith('f')) return 'invalid';
  return verdict === 'valid' && type === 'role-based' ? 'risky' : verdict;
}
