import { type BySituation, type Contact, contactOf, type Finding, type Situation, search } from './magic.ts';
import {
  type Answer,
  type Answered,
  type Memory,
  ok,
  type Question,
  type Source,
  troubleOf,
} from './wire.ts';

// The two vendors that are asked by name and employer and answer at once.

/** Whether an address is known to exist: else it is shown as unverified, or not at all. */
const UNVERIFIED: readonly Situation[] = ['unknown', 'catchall'];
const LIMIT_PER_MINUTE = 60;
const LIMIT_PER_DAY = 2000;

/**
 * Prospeo's wire format as its public documentation gives it: POST /enrich-person, charged for a match. Everything
 * that went wrong, a person it does not know among them, is 400 with an `error_code`.
 */
export const prospeo: Source = {
  base: '/prospeo',
  latencyMs: 400,
  deny: ({ headers }, apiKey) => (headers['x-key'] === apiKey ? null : prospeoError('INVALID_API_KEY', 401)),
  notFound: prospeoError('INVALID_REQUEST', 404),
  routes: { 'POST /enrich-person': { operation: 'enrich', answer: enrich } },
};

const PROSPEO_TROUBLES = {
  hanging: 'hang',
  failing: prospeoError('INTERNAL_ERROR', 500),
  broke: prospeoError('INSUFFICIENT_CREDITS'),
  limited: prospeoError('RATE_LIMITED', 429),
} as const;

function enrich({ body }: Question, memory: Memory): Answered {
  const [subject, reply] = match(body, memory);
  if (reply === 'hang') return [subject, reply];
  return [subject, { ...reply, headers: limits(reply.status === 429 ? 0 : LIMIT_PER_MINUTE - 1, memory) }];
}

function match({ data, only_verified_email: onlyVerified }: Question['body'], memory: Memory): Answered {
  if (!data) return ['', prospeoError('INVALID_REQUEST')];
  const fields: Question['body'] = { ...data };
  const contact = contactOf(fields, { domain: fields.company_website, company: fields.company_name });
  if (contact === null) return ['', prospeoError('INVALID_DATAPOINTS')];
  const { subject, finding } = search('prospeo', contact);
  if (finding === null) return [subject, prospeoError('NO_MATCH')];
  const trouble = troubleOf(PROSPEO_TROUBLES, finding.situation, subject, memory);
  if (trouble) return [subject, trouble];
  const verified = !UNVERIFIED.includes(finding.situation);
  if (onlyVerified === true && !verified) return [subject, prospeoError('NO_MATCH')];
  return [subject, prospeoMatch(finding, verified, memory.times(`bought ${subject}`) > 0)];
}

/** Every answer carries how much may still be asked. */
function limits(left: number, { speed }: Memory) {
  return {
    'x-second-rate-limit': '5',
    'x-minute-rate-limit': String(LIMIT_PER_MINUTE),
    'x-minute-request-left': String(left),
    'x-minute-reset-seconds': String(Math.ceil(60 / speed)),
    'x-daily-rate-limit': String(LIMIT_PER_DAY),
    'x-daily-request-left': String(LIMIT_PER_DAY - 1),
    'x-daily-reset-seconds': '86400',
  };
}

function prospeoMatch(
  { person, workEmail, situation }: Finding,
  verified: boolean,
  isBought: boolean,
): Answer {
  const { npi, first, last, organization } = person;
  const { city, state } = organization.address;
  const revealed = situation !== 'masked';
  return ok({
    error: false,
    free_enrichment: isBought,
    person: {
      person_id: npi,
      first_name: first,
      last_name: last,
      full_name: `${first} ${last}`,
      linkedin_url: null,
      current_job_title: 'Physician',
      email: {
        status: verified ? 'VERIFIED' : 'UNAVAILABLE',
        revealed,
        email: revealed ? workEmail : workEmail?.replace(/^(.)[^@]*/, '$1*****'),
        verification_method: verified ? 'SMTP' : null,
        email_mx_provider: 'Google',
      },
      mobile: { status: 'UNAVAILABLE', revealed: false, mobile: null },
      location: { country: 'United States', country_code: 'US', state, city },
    },
    company: {
      name: organization.dba ?? organization.name,
      website: `https://${organization.domain}`,
      domain: organization.domain,
    },
  });
}

function prospeoError(errorCode: string, status = 400): Answer {
  return { status, body: { error: true, error_code: errorCode } };
}

/** How often Hunter answers a slow search 202 before its result. */
const SLOW_ANSWERS = 2;
const VERIFIED_AGO_MS = 86_400_000;

/**
 * Hunter's wire format, version 2, as its OpenAPI and its documentation give it: GET /email-finder, charged for an
 * email. 202 means that the same question is to be asked again, 403 that it came too fast, 429 that the plan is used up.
 */
export const hunter: Source = {
  base: '/hunter/v2',
  latencyMs: 500,
  deny({ headers, query }, apiKey) {
    const bearer = headers.authorization?.replace(/^bearer /i, '');
    return [headers['x-api-key'], bearer, query.get('api_key')].includes(apiKey)
      ? null
      : hunterError(401, 'authentication_failed', 'No user found for the API key supplied');
  },
  notFound: hunterError(404, 'not_found', 'There is nothing here'),
  routes: { 'GET /email-finder': { operation: 'find', answer: find } },
};

const HUNTER_TROUBLES = {
  hanging: 'hang',
  failing: hunterError(500, 'internal_error', 'Something went wrong on our side'),
  broke: hunterError(429, 'too_many_requests', 'The limit of searches of your plan is reached'),
  optedout: hunterError(451, 'claimed_email', 'This person asked us to stop processing their personal data'),
  limited: hunterError(403, 'forbidden', 'The rate limit is reached'),
} as const;
const HUNTER_STATUS: BySituation<string> = {
  catchall: 'accept_all',
  unknown: 'unknown',
  missing: 'invalid',
  webmail: 'webmail',
  disposable: 'disposable',
};

function find({ query }: Question, memory: Memory): Answered {
  const at = { domain: query.get('domain'), company: query.get('company') };
  const contact = contactOf(Object.fromEntries(query), at);
  if (contact === null)
    return ['', hunterError(400, 'wrong_params', 'You are missing a name, or a domain or company')];
  const { subject, finding } = search('hunter', contact);
  if (finding === null) return [subject, hunterError(404, 'not_found', 'No email was found')];
  const trouble = troubleOf(HUNTER_TROUBLES, finding.situation, subject, memory);
  if (trouble) return [subject, trouble];
  const isRunning = finding.situation === 'slow' && memory.times(`asked ${subject}`) < SLOW_ANSWERS;
  return [subject, isRunning ? { status: 202, body: {} } : hunterResult(finding, contact)];
}

function hunterResult({ person, workEmail, situation }: Finding, asked: Contact): Answer {
  const { first, last, organization } = person;
  const { domain, company } = asked;
  const name = { first_name: asked.first, last_name: asked.last, full_name: null };
  const params = { ...name, domain, company, max_duration: null };
  const date = new Date(Date.now() - VERIFIED_AGO_MS).toISOString().slice(0, 10);
  return ok({
    data: {
      first_name: first,
      last_name: last,
      email: workEmail,
      score: situation === 'found' ? 97 : 60,
      domain: organization.domain,
      accept_all: situation === 'catchall',
      position: 'Physician',
      twitter: null,
      linkedin_url: null,
      phone_number: null,
      company: organization.dba ?? organization.name,
      sources: [],
      verification: { date, status: HUNTER_STATUS[situation] ?? 'valid' },
    },
    meta: { params },
  });
}

function hunterError(code: number, id: string, details: string): Answer {
  return { status: code, body: { errors: [{ id, code, details }] } };
}
