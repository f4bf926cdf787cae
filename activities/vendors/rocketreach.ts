import type { Rate } from '../../db/lookups/sources.ts';
import { EMAIL_TYPES, type EmailType, type RequestedType } from '../../db/words.ts';
import { inBody, jsonApi } from '../http/client.ts';
import type { Field } from '../http/fields.ts';
import { type Claim, candidatesOf, identityOf, timestampOf } from './responses.ts';
import {
  GIVEN_UP,
  type Step,
  stepBy,
  typesOf,
  unlessPage,
  type Vendor,
  type VendorFacts,
  type VendorOptions,
  type Verdict,
} from './vendor.ts';

/** The limit for all calls of an account, in every plan. */
const ALL_CALLS: Rate = { calls: 10, perMs: 1000 };

/** The limits for lookups in each plan. Polls do not count. */
export const ROCKETREACH_PLANS = {
  essentials: ratesOf(15, 100, 500),
  pro: ratesOf(50, 300, 1500),
  ultimate: ratesOf(100, 1000, 3000),
  custom: ratesOf(250, 2500, 10_000),
} as const satisfies Record<string, readonly Rate[]>;

/** Returns the limits of a plan by its lookups per minute, hour, and day. */
function ratesOf(perMinute: number, perHour: number, perDay: number): readonly Rate[] {
  return [
    ALL_CALLS,
    { calls: perMinute, perMs: 60_000, exceptPolls: true },
    { calls: perHour, perMs: 3_600_000, exceptPolls: true },
    { calls: perDay, perMs: 86_400_000, exceptPolls: true },
  ];
}

export const ROCKETREACH = {
  id: 'rocketreach',
  url: 'https://api.rocketreach.co/api/v2',
  callMs: 30_000,
  needs: ['npi'],
  gives: ['professional', 'personal'],
  isDated: true,
  repeatIsFree: false,
  capMs: 120_000,
  // The rate limits of the smallest plan, because responses do not say which plan we have.
  rates: ROCKETREACH_PLANS.essentials,
} as const satisfies VendorFacts;

/**
 * The wait between polls: the vendor says "Poll about every 3 seconds". Polls are free, but they
 * count toward the account's limit of 10 requests a second.
 */
const POLL_MS = 3000;
const MIN_POLL_MS = 100;
const MAX_POLL_MS = 60_000;

/** Universal credits for an email of each type. */
const UNIVERSAL_CREDITS: Readonly<Record<EmailType, number>> = {
  professional: 2,
  personal: 3,
};

/**
 * The vendor's two APIs for people. `needs` is the data that an API requires, and `cost` returns
 * the credits that it charges for addresses of the given types.
 */
const APIS = {
  legacy: {
    needs: ROCKETREACH.needs,
    lookupPath: '/person/lookup',
    statusPath: '/person/checkStatus',
    query: (_requestedType: RequestedType) => ({ lookup_type: 'standard' }),
    cost: (types: ReadonlySet<EmailType>) => Math.min(types.size, 1),
  },
  universal: {
    // A response without an NPI can be matched to a person only by name.
    needs: [...ROCKETREACH.needs, 'name'],
    lookupPath: '/universal/person/lookup',
    statusPath: '/universal/person/check_status',
    // Returning the NPI would cost one more credit (`reveal_healthcare_enrichment`). Name and state
    // are free.
    query(requestedType: RequestedType) {
      const parameters: Record<string, string> = {};
      for (const type of typesOf(requestedType))
        parameters[`reveal_${type}_email`] = 'true';
      return parameters;
    },
    cost(types: ReadonlySet<EmailType>) {
      const credits = [...types].map((type) => UNIVERSAL_CREDITS[type]);
      return credits.reduce((sum, one) => sum + one, 0);
    },
  },
} as const;
type Cost = (types: ReadonlySet<EmailType>) => number;
export type RocketReachApi = keyof typeof APIS;
export const ROCKETREACH_APIS = Object.keys(APIS) as RocketReachApi[];

/**
 * Creates the adapter of RocketReach's people lookup, version 2, which searches by NPI. The sources
 * at docs.rocketreach.co, read in November 2026, are the OpenAPI document (operations
 * `create_person_lookup` and `check_person_lookup_status`, or the `universal` operations of the
 * same names), "Rate Limits", "Universal Credits Overview", and "FAQ", which says that only emails
 * of grade A or A- are charged.
 *
 * The vendor has no idempotency key. Every `submit` may be charged again, but a `poll` is free. So
 * a 200 that cannot be read is `fatal` `protocol` and not `retry`, because we would pay for a
 * second response of the same form. The body of a failing server or gateway (5xx) is never read,
 * and the step is always `retry`.
 * @param options.api the person API that the account uses. Newer accounts pay in universal credits.
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
    cost: (requestedType) => cost(new Set(typesOf(requestedType))),

    async submit({ npi, requestedType }, signal) {
      const parameters = new URLSearchParams({
        npi_number: npi,
        ...query(requestedType),
        // Cached addresses are not verified. Without cached addresses, the lookup ends only when
        // all addresses are verified.
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
        // The list has one profile per known ID. If ours is missing, the vendor has forgotten the
        // lookup, which says nothing about the person.
        200: inBody((profiles) => {
          const hasId = (profile: Field) => String(profile.at('id').value) === jobRef;
          const profile = profiles.items().find(hasId);
          if (profile === undefined) return GIVEN_UP;
          return stepOfProfile(profile, cost);
        }),
        404: unlessPage(GIVEN_UP),
      });
      return await ask({ path: `${statusPath}?${parameters}` }, signal, read);
    },
  };
}

/**
 * Reads one profile (RocketReach's OpenAPI: ProfileAPIWithMetadataCompiledCompany,
 * UniversalCreditPersonLookupOutputWithMetadata). Unused fields may have any value. A used field
 * with an undocumented type makes the whole profile unreadable, because its meaning would be a
 * guess.
 */
function stepOfProfile(profile: Field, cost: Cost): Step {
  // The documented values are `complete`, `progress`, `searching`, and `not queued`. `failed` is
  // documented for single records only.
  const status = profile.at('status').requiredText();
  const emails = profile.at('emails');
  const id = profile.at('id').number();
  if (id === null || !Number.isSafeInteger(id)) profile.at('id').fail();
  const identity = identityOf({
    // This is a string in the vendor's schema, but a number in its example. A value that isn't an
    // NPI never matches the requested NPI.
    npi: profile.at('npi_data').at('npi_number'),
    full: profile.at('name'),
    state: profile.at('region'),
    country: profile.at('country_code'),
    employerDomain: profile.at('current_employer_domain'),
  });
  const current = new Set(CURRENT.map((name) => profile.at(name).word()));
  // `emails` is null or absent while a lookup with `return_cached_emails=false` is running.
  if (status === 'complete') emails.present();
  const candidates = candidatesOf(emails.items().map((entry) => claimOf(entry, current)));
  if (status === 'failed') return GIVEN_UP;
  if (status !== 'complete') {
    // "A status other than complete indicates the lookup is not finished". This applies to
    // undocumented words too.
    const { value: hint } = profile.at('retry_after_seconds');
    return { kind: 'pending', jobRef: String(id), pollAfterMs: pollAfterMs(hint) };
  }
  if (candidates.length === 0) {
    return { kind: 'miss', reason: 'no_email' };
  }
  // We sent only the NPI, so a name in the response is the vendor's own data.
  const repeatsInput = identity.name === null;
  const credits = cost(chargedTypes(emails));
  return { kind: 'found', candidates, identity, repeatsInput, credits };
}

/**
 * Returns the types of the emails that the vendor charges for: those of grade A or A-, and we
 * assume also those without a documented grade. An email without a type counts as a professional
 * one, which is the cheapest.
 */
function chargedTypes(emails: Field): ReadonlySet<EmailType> {
  const charged = emails.items().filter((entry) => {
    const grade = entry.at('grade').word();
    return !/^[b-f]/.test(grade);
  });
  return new Set(charged.map((entry) => typeOf(entry) ?? 'professional'));
}

function typeOf(entry: Field): EmailType | null {
  const type = entry.at('type').word();
  return EMAIL_TYPES.find((one) => one === type) ?? null;
}

/**
 * Returns the wait before the next poll, within our limits.
 * @param hint the vendor's wait in seconds. The REST API does not document it, so it may have any
 * form.
 */
function pollAfterMs(hint: unknown): number {
  if (typeof hint !== 'number') return POLL_MS;
  return Math.round(Math.min(Math.max(hint * 1000, MIN_POLL_MS), MAX_POLL_MS));
}

/**
 * Maps `smtp_valid`, the mail server's response. The vendor uses hyphens and underscores
 * inconsistently.
 */
const VERDICTS: ReadonlyMap<string, Verdict> = new Map([
  ['valid', 'valid'],
  ['invalid', 'invalid'],
  ['acceptall', 'catch_all'],
  ['catchall', 'catch_all'],
]);

/**
 * The fields of a profile that name the person's current address, or the one that the vendor
 * recommends.
 */
const CURRENT = [
  'current_work_email',
  'current_personal_email',
  'recommended_professional_email',
  'recommended_personal_email',
  'recommended_email',
];

/**
 * Reads one address of a profile (ProfileEmailAPI).
 * @param current the profile's current and recommended addresses, in lowercase
 */
function claimOf(entry: Field, current: ReadonlySet<string>): Claim {
  const type = entry.at('type').word();
  const email = entry.at('email').present();
  const smtpValid = entry.at('smtp_valid').present().word();
  const grade = entry.at('grade').word();
  return {
    email,
    vendorType: typeOf(entry),
    verdict: verdictOf(smtpValid, type, grade),
    validatedAt: timestampOf(entry.at('last_validation_check').text()),
    isCurrent: current.has(email.word()),
    confidence: confidenceOf(grade),
  };
}

/**
 * Returns the confidence of a grade, such as `a-`. The vendor publishes only the order of its
 * grades, so the numbers between A (1) and F (0) are ours.
 */
function confidenceOf(grade: string): number | null {
  const place = 'fdcba'.indexOf(grade.charAt(0));
  if (grade === '' || place < 0) return null;
  const step = grade.endsWith('-') ? 2.5 * place - 1 : 2.5 * place;
  return Math.max(step, 0) / 10;
}

/**
 * Returns the verdict of `smtp_valid` (`inconclusive`, `unknown`, and new words are `unknown`).
 * Type and grade can only lower it. A disposable mailbox is useless, a role mailbox does not belong
 * to a person, and F is the vendor's grade for an address it gave up on. The better grades (A to D)
 * say how likely the address is this person's current one, but nothing about the mailbox.
 */
function verdictOf(smtpValid: string, type: string, grade: string): Verdict {
  const verdict = VERDICTS.get(smtpValid.replaceAll(/[-_]/g, '')) ?? 'unknown';
  if (type === 'disposable' || grade.startsWith('f')) return 'invalid';
  if (verdict === 'valid' && type === 'role-based') return 'risky';
  return verdict;
}
