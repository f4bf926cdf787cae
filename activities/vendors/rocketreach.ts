import { EMAIL_TYPES, type EmailType, type WantedType } from '../../db/words.ts';
import { inBody, jsonApi } from '../http/client.ts';
import type { Field } from '../http/fields.ts';
import {
  type Claim,
  candidatesOf,
  GIVEN_UP,
  identityOf,
  type Step,
  stepBy,
  timestampOf,
  typesOf,
  unlessPage,
  type Vendor,
  type VendorFacts,
  type VendorOptions,
  type Verdict,
} from './vendor.ts';

export const ROCKETREACH = {
  id: 'rocketreach',
  url: 'https://api.rocketreach.co/api/v2',
  callMs: 30_000,
  needs: ['npi'],
  gives: ['professional', 'personal'],
  isDated: true,
  repeatIsFree: false,
  capMs: 120_000,
  rates: [{ calls: 10, perMs: 1000 }],
} as const satisfies VendorFacts;

/**
 * "Poll about every 3 seconds"; polls are free, but count for the account's 10 requests a second.
 */
const POLL_MS = 3000;
const MIN_POLL_MS = 100;
const MAX_POLL_MS = 60_000;

/**
 * Universal credits for a verified profile of each type (docs.rocketreach.co, "Universal credits
 * overview").
 */
const UNIVERSAL_CREDITS: Readonly<Record<EmailType, number>> = { professional: 2, personal: 3 };

/** The two: what is asked for beside the NPI, and the credits of addresses of these types. */
const APIS = {
  legacy: {
    needs: ROCKETREACH.needs,
    lookupPath: '/person/lookup',
    statusPath: '/person/checkStatus',
    query: (_wantedType: WantedType) => ({ lookup_type: 'standard' }),
    cost: (_types: ReadonlySet<EmailType>) => 1,
  },
  universal: {
    // Whom an answer without an NPI is about, a name alone can tell.
    needs: [...ROCKETREACH.needs, 'name'],
    lookupPath: '/universal/person/lookup',
    statusPath: '/universal/person/check_status',
    // The NPI in the answer would cost one more (`reveal_healthcare_enrichment`); its name and
    // state are free.
    query: (wantedType: WantedType) =>
      Object.fromEntries(typesOf(wantedType).map((type) => [`reveal_${type}_email`, 'true'])),
    cost: (types: ReadonlySet<EmailType>) =>
      [...types].reduce((sum, type) => sum + UNIVERSAL_CREDITS[type], 0),
  },
} as const;
export type RocketReachApi = keyof typeof APIS;
export const ROCKETREACH_APIS = Object.keys(APIS) as RocketReachApi[];

/**
 * RocketReach's people lookup, version 2, by NPI (docs.rocketreach.co; its OpenAPI, operations
 * `create_person_lookup` and `check_person_lookup_status`, or the two of the same names with
 * `universal`).
 *
 * The vendor has no idempotency key: every `submit` may be charged again, `poll` never is. An
 * answer of 200 that cannot be read is therefore `fatal` `protocol` and not `retry`: asking again
 * would pay again for an answer of the same form. What a failing server or gateway (5xx) writes is
 * never read and always `retry`.
 * @param options.api which of its two person APIs the account has: newer accounts pay in universal
 * credits
 */
export function createRocketReach(
  options: VendorOptions & { readonly api: RocketReachApi },
): Vendor {
  const { baseUrl, apiKey, callMs = ROCKETREACH.callMs, api } = options;
  const ask = jsonApi(baseUrl, { 'Api-Key': apiKey }, callMs);
  const { needs, lookupPath, statusPath, query, cost } = APIS[api];

  return {
    ...ROCKETREACH,
    needs,
    callMs,
    cost: (wantedType) => cost(new Set(typesOf(wantedType))),

    async submit({ npi, wantedType }, signal) {
      const parameters = new URLSearchParams({
        npi_number: npi,
        ...query(wantedType),
        // Cached addresses come unverified; without them the lookup answers once all are verified.
        return_cached_emails: 'false',
      });
      const read = stepBy({
        200: inBody((profile) => stepOfProfile(profile, cost)),
        404: unlessPage({ kind: 'miss', reason: 'no_profile', credits: 0 }),
      });
      return await ask({ path: `${lookupPath}?${parameters}` }, signal, read);
    },

    async poll(jobRef, _subject, signal) {
      const parameters = new URLSearchParams({ ids: jobRef });
      const read = stepBy({
        // One profile for each id it knows: a lookup it has forgotten is no word about the person.
        200: inBody((profiles) => {
          const profile = profiles.items().find((item) => String(item.at('id').value) === jobRef);
          return profile ? stepOfProfile(profile, cost) : GIVEN_UP;
        }),
        404: unlessPage(GIVEN_UP),
      });
      return await ask({ path: `${statusPath}?${parameters}` }, signal, read);
    },
  };
}

/**
 * Reads one profile (RocketReach's OpenAPI: ProfileAPIWithMetadataCompiledCompany,
 * UniversalCreditPersonLookupOutputWithMetadata). Fields nobody reads may be anything; a field that
 * is read and has a type the document does not give it makes the whole profile unreadable, because
 * what it means is then a guess.
 */
function stepOfProfile(profile: Field, cost: (types: ReadonlySet<EmailType>) => number): Step {
  // `complete`, `progress`, `searching`, `not queued`; `failed` is documented for single records
  // only.
  const status = profile.at('status').requiredText();
  const emails = profile.at('emails');
  const id = profile.at('id').number();
  if (id === null || !Number.isSafeInteger(id)) profile.at('id').fail();
  const identity = identityOf({
    // A string by the document's schema, a number in its example. What is no NPI equals none that
    // was asked for.
    npi: profile.at('npi_data').at('npi_number'),
    full: profile.at('name'),
    state: profile.at('region'),
    country: profile.at('country_code'),
  });
  // Null or absent while a lookup runs with `return_cached_emails=false`: then there are none yet.
  const named = (status === 'complete' ? emails.present() : emails).items();
  const candidates = candidatesOf(named.map(claimOf));
  if (status === 'failed') return GIVEN_UP;
  if (status !== 'complete') {
    // "A status other than complete indicates the lookup is not finished": words not seen yet
    // included.
    const { value: hint } = profile.at('retry_after_seconds');
    return { kind: 'pending', jobRef: String(id), pollAfterMs: pollAfterMs(hint) };
  }
  if (candidates.length === 0) return { kind: 'miss', reason: 'no_email' };
  // It was told the NPI alone, and has a name to it.
  const isEcho = identity.name === null;
  // An address whose type the vendor does not say is charged as a professional one at least.
  const types = new Set(candidates.map(({ vendorType }) => vendorType ?? 'professional'));
  return { kind: 'found', candidates, identity, isEcho, credits: cost(types) };
}

/**
 * @param hint the vendor's, when to ask again: in no document of the REST API, so its form is no
 * one's promise
 */
function pollAfterMs(hint: unknown): number {
  if (typeof hint !== 'number') return POLL_MS;
  return Math.round(Math.min(Math.max(hint * 1000, MIN_POLL_MS), MAX_POLL_MS));
}

/** By `smtp_valid`, which is what the mail server said; its hyphens and underscores come and go. */
const VERDICTS: ReadonlyMap<string, Verdict> = new Map([
  ['valid', 'valid'],
  ['invalid', 'invalid'],
  ['acceptall', 'catch_all'],
  ['catchall', 'catch_all'],
]);

/** One address of a profile (ProfileEmailAPI). */
function claimOf(entry: Field): Claim {
  const type = entry.at('type').word();
  return {
    email: entry.at('email').present(),
    vendorType: EMAIL_TYPES.find((one) => one === type) ?? null,
    verdict: judge(entry.at('smtp_valid').present().word(), type, entry.at('grade').word()),
    validatedAt: timestampOf(entry.at('last_validation_check').text()),
  };
}

/**
 * `smtp_valid` decides (`inconclusive`, `unknown` and words not seen yet are `unknown`). Type and
 * grade can only lower it: a disposable mailbox is of no use, a role mailbox is not a person's, and
 * F is the vendor's grade for an address it gave up on. The better grades (A to D) weigh the
 * likelihood that the address is this person's current one, which is no word about the mailbox.
 */
function judge(smtpValid: string, type: string, grade: string): Verdict {
  const verdict = VERDICTS.get(smtpValid.replaceAll(/[-_]/g, '')) ?? 'unknown';
  if (verdict === 'invalid' || type === 'disposable' || grade.startsWith('f')) return 'invalid';
  return verdict === 'valid' && type === 'role-based' ? 'risky' : verdict;
}
