import type { EmailType } from '../../db/words.ts';
import {
  type HttpResponse,
  inBody,
  jsonApi,
  protocol,
  retryAfterMs,
} from '../http/client.ts';
import type { Field } from '../http/fields.ts';
import { type Claim, candidatesOf, identityOf, stepOfCandidates } from './responses.ts';
import {
  employeeOf,
  GIVEN_UP,
  type Identity,
  type Step,
  stepBy,
  typesOf,
  unlessPage,
  type Vendor,
  type VendorFacts,
  type VendorOptions,
} from './vendor.ts';

export const FULLENRICH = {
  id: 'fullenrich',
  url: 'https://app.fullenrich.com/api/v2',
  callMs: 30_000,
  needs: ['name', 'organization'],
  gives: ['professional', 'personal'],
  isDated: false,
  repeatIsFree: false,
  capMs: 300_000,
  rates: [{ calls: 60, perMs: 60_000 }],
} as const satisfies VendorFacts;

/**
 * The interval between polls. The vendor asks for at least 5 to 10 minutes (docs.fullenrich.com,
 * "How Webhooks Work"). A deadline of 15 minutes leaves time for three polls: after the usual time
 * of a job, and 5 and 10 minutes later.
 */
export const FULLENRICH_POLL_MS = 300_000;
/**
 * The wait before the first poll. A job takes "typically 30-90 seconds per contact" (the same
 * page), so one poll is usually enough.
 */
const USUAL_MS = 100_000;
/**
 * The wait after the response "Too many requests. Try again in 1m", which has no Retry-After
 * header.
 */
const LIMITED_MS = 60_000;

const FIELDS: Readonly<Record<EmailType, string>> = {
  professional: 'contact.work_emails',
  personal: 'contact.personal_emails',
};
const CREDITS: Readonly<Record<EmailType, number>> = { professional: 1, personal: 3 };

/**
 * Creates the adapter of FullEnrich's contact enrichment, version 2, which searches by name and
 * employer. The sources at docs.fullenrich.com, read in November 2026, are the OpenAPI document
 * (operations `postContactBulkEnrich` and `GetContactBulkEnrichByID`), "Rate Limit", "Credits &
 * Testing Tips", and "Email Verification Status". Each job contains one contact, so that each
 * request can end independently. A lookup usually needs two of the account's 60 calls a minute.
 *
 * The statuses are unusual: a poll of a running job is a 400, and a 402 carries a whole result.
 * Repeating a job is free only if the first job has ended, which we can't know if its response was
 * lost.
 * @param options.pollMs the interval between two polls of a job: FULLENRICH_POLL_MS, or less only
 * for a simulator that runs faster
 */
export function createFullEnrich(
  options: VendorOptions & { readonly pollMs: number },
): Vendor {
  const { baseUrl, apiKey, callMs = FULLENRICH.callMs, pollMs } = options;
  const ask = jsonApi(baseUrl, { authorization: `Bearer ${apiKey}` }, callMs);
  const path = '/contact/enrich/bulk';
  const readSubmit = createSubmitReader(pollMs);

  return {
    ...FULLENRICH,
    callMs,
    cost(requestedType) {
      const credits = typesOf(requestedType).map((type) => CREDITS[type]);
      return credits.reduce((sum, one) => sum + one, 0);
    },

    async submit(subject, signal) {
      const employee = employeeOf(subject);
      if (employee.kind === 'skip') return employee;
      const contact = {
        first_name: employee.first,
        last_name: employee.last,
        domain: employee.domain || undefined,
        company_name: employee.company || undefined,
        enrich_fields: typesOf(subject.requestedType).map((type) => FIELDS[type]),
      };
      // The vendor shows this name for the job on its website.
      const job = { name: `NPI ${subject.npi}`, data: [contact] };
      return await ask({ path, json: job }, signal, readSubmit);
    },

    async poll(jobRef, _subject, signal) {
      const request = { path: `${path}/${encodeURIComponent(jobRef)}` };
      const readPoll = createPollReader(jobRef, pollMs);
      const step = await ask(request, signal, readPoll);
      // A failed poll that reached the vendor counts as a poll, so the next one comes after
      // `pollMs`.
      if (step.kind === 'retry' && step.why !== 'unsent' && step.afterMs === null) {
        return { ...step, afterMs: pollMs };
      }
      return step;
    },
  };
}

function createSubmitReader(pollMs: number) {
  return stepBy({
    200: inBody((body) => {
      const jobRef = jobRefOf(body.at('enrichment_id'));
      return { kind: 'pending', jobRef, pollAfterMs: Math.min(USUAL_MS, pollMs) };
    }),
    400: inBody((body) => {
      const need = REFUSED.get(body.at('code').requiredText());
      if (need === undefined) return protocol('code');
      return { kind: 'skip', missing: [need] };
    }),
    429: limited,
  });
}

function createPollReader(jobRef: string, pollMs: number) {
  const pending: Step = { kind: 'pending', jobRef, pollAfterMs: pollMs };
  const readResult = inBody((body) => stepOfResult(body, pending));
  return stepBy({
    200: readResult,
    400: inBody((body) => {
      if (body.at('code').text() === 'error.enrichment.in_progress') {
        return pending;
      }
      return protocol('code');
    }),
    402(response) {
      // Results that were found before the credits ran out are paid for, so they are used.
      const step = readResult(response);
      if (step.kind === 'found') return step;
      return { kind: 'fatal', why: 'credits' };
    },
    404: unlessPage(GIVEN_UP),
    429: limited,
  });
}

function limited({ headers }: HttpResponse): Step {
  const afterMs = retryAfterMs(headers) ?? LIMITED_MS;
  return { kind: 'retry', why: 'rate_limit', afterMs };
}

/**
 * Maps the error codes of a 400 that concern only this person to the data that is missing. Any
 * other code means that our request is malformed.
 */
const REFUSED: ReadonlyMap<string, string> = new Map([
  ['error.enrichment.first_name.empty', 'name'],
  ['error.enrichment.last_name.empty', 'name'],
  ['error.enrichment.domain.empty', 'organization'],
]);

/**
 * Returns the job's ID, a UUID according to the documentation. Other text is rejected, because the
 * ID becomes part of a URL's path.
 */
function jobRefOf(field: Field): string {
  const id = field.requiredText();
  if (!/^[\w-]{1,100}$/.test(id)) return field.fail();
  return id;
}

/**
 * Reads the result of the one contact in our job (FullEnrich's OpenAPI,
 * ResponseGetContactBulkEnrich). The vendor leaves out fields without a result.
 */
function stepOfResult(body: Field, pending: Step): Step {
  const status = body.at('status').requiredText();
  const records = body.at('data').items();
  // A finished job lists its contact even if nothing was found.
  if (status === 'FINISHED' && records.length === 0) {
    body.at('data').fail();
  }
  const contacts = records.map((record) => record.at('contact_info'));
  const candidates = candidatesOf(contacts.flatMap(claimsOf));
  const identity = identityOfRecord(body.at('data').pointed(['0']));
  const repeatsInput = records.every((record) => record.at('profile').isAbsent);
  // The cost of the job so far, if the vendor reports it.
  const charged = body.at('cost').at('credits');
  const credits = charged.number();
  if (credits !== null && !(credits >= 0 && credits < 1e6)) {
    charged.fail();
  }
  const found = { candidates, identity, repeatsInput };
  const named = stepOfCandidates(credits === null ? found : { ...found, credits });
  switch (status) {
    case 'FINISHED':
    // This status means that the vendor has no data for the contact (according to its skill file
    // for AI agents). The status for an empty account is HTTP 402.
    case 'CREDITS_INSUFFICIENT':
      return named;
    case 'CANCELED':
      return GIVEN_UP;
    default:
      // CREATED, IN_PROGRESS, RATE_LIMIT, UNKNOWN, and new words do not mean that the job has
      // ended.
      return pending;
  }
}

/**
 * Maps the vendor's "Email Verification Status" (docs.fullenrich.com) to our verdict and to the
 * share of such addresses that do not bounce: 98 % of DELIVERABLE, and 91 % of HIGH_PROBABILITY,
 * which is a catch-all address that is likely to be right. An older edition of the page says 60 %
 * for CATCH_ALL.
 */
const MEANINGS: ReadonlyMap<string, Pick<Claim, 'verdict' | 'confidence'>> = new Map([
  ['deliverable', { verdict: 'valid', confidence: 0.98 }],
  ['high_probability', { verdict: 'catch_all', confidence: 0.91 }],
  ['catch_all', { verdict: 'catch_all', confidence: 0.6 }],
  ['invalid', { verdict: 'invalid', confidence: 0 }],
  ['invalid_domain', { verdict: 'invalid', confidence: 0 }],
]);
const UNKNOWN: Pick<Claim, 'verdict' | 'confidence'> = {
  verdict: 'unknown',
  confidence: null,
};

/** Returns a claim for each listed email. For each type, the most probable email comes first. */
function claimsOf(contact: Field): Claim[] {
  return [
    ...claimsOfType(contact, 'work', 'professional'),
    ...claimsOfType(contact, 'personal', 'personal'),
  ];
}

function claimsOfType(contact: Field, name: string, vendorType: EmailType): Claim[] {
  const mostProbable = contact.at(`most_probable_${name}_email`);
  const entries = [mostProbable, ...contact.at(`${name}_emails`).items()];
  const present = entries.filter((entry) => !entry.isAbsent);
  return present.map((entry) => claimOf(entry, vendorType, entry === mostProbable));
}

function claimOf(entry: Field, vendorType: EmailType, isCurrent: boolean): Claim {
  const status = entry.at('status').present().word();
  const { verdict, confidence } = MEANINGS.get(status) ?? UNKNOWN;
  const email = entry.at('email').present();
  // The vendor gives no date. It may return stored results that are up to three months old.
  return { email, vendorType, verdict, validatedAt: null, isCurrent, confidence };
}

/**
 * Returns the identity of the person the vendor found. A profile exists only for contacts submitted
 * with a LinkedIn URL, which NPPES does not have. Without a profile, the vendor says only that the
 * addresses belong to the person in `input`.
 */
function identityOfRecord(record: Field): Identity {
  const profile = record.at('profile');
  const person = profile.isAbsent ? record.at('input') : profile;
  const location = profile.at('location');
  const employer = profile.at('employment').at('current').at('company');
  return identityOf({
    first: person.at('first_name'),
    last: person.at('last_name'),
    full: person.at('full_name'),
    state: location.at('region'),
    country: location.at('country_code'),
    employerDomain: employer.at('domain'),
  });
}
