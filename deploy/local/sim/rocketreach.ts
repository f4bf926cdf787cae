import { type Finding, findingOf } from './knowledge.ts';
import type { ByKnown } from './magic.ts';
import {
  aboutPerson,
  type Memory,
  ok,
  type SimRequest,
  type SimResponse,
  type Source,
  type SubjectResponse,
} from './wire.ts';

const POLL_SECONDS = 3;
const VALIDATED_AGO_MS = 3_600_000;
const NO_PROFILE = problem(404, 'The requested resource does not exist.');
/** Responses to a lookup that are sent instead of a profile. */
const INSTEAD: ByKnown<SimResponse> = {
  nobody: NO_PROFILE,
  failing: problem(500, 'Unexpected error.'),
  limited: { ...problem(429, 'Request was throttled.'), headers: { 'retry-after': '1' } },
};

/**
 * For a lookup that takes longer, the statuses of its first responses. The response to the lookup
 * has the first status, and each status check gets the next one. All later responses are
 * `complete`.
 */
const UNFINISHED: ByKnown<readonly string[]> = {
  slow: ['searching', 'progress'],
  unknown: ['progress', 'progress'],
};
/**
 * The values of `smtp_valid` and `grade` for addresses of these two kinds. All other addresses have
 * `valid` and `A`.
 */
const CHECKED: ByKnown<readonly [string, string]> = {
  catchall: ['accept-all', 'B'],
  unknown: ['inconclusive', 'B-'],
};

/**
 * Simulates RocketReach's API, version 2, according to its OpenAPI document. `GET /person/lookup`
 * starts the lookup of an NPI, and `GET /person/checkStatus` returns its result. The other routes,
 * for RocketReach's universal credits, are not simulated.
 */
export const rocketreach: Source = {
  base: '/rocketreach/api/v2',
  deny({ headers }, apiKey) {
    if (headers['api-key'] === apiKey) return null;
    return problem(401, 'Invalid API Key');
  },
  routes: {
    'GET /person/lookup': aboutPerson(find, INSTEAD, lookUp),
    'GET /person/checkStatus': checkStatus,
  },
};

function find({ query }: SimRequest): Finding | SimResponse {
  const npi = query.get('npi_number') ?? '';
  if (!/^[0-9]{10}$/.test(npi)) {
    return problem(400, 'npi_number is required.');
  }
  return findingOf('rocketreach', npi);
}

function lookUp(finding: Finding, _request: SimRequest, memory: Memory): SimResponse {
  const job = () => ok(profile(finding, memory));
  memory.jobs.set(finding.subject, job);
  return job();
}

function checkStatus({ query }: SimRequest, { jobs }: Memory): SubjectResponse {
  const ids = query.get('ids') ?? '';
  const profiles = [];
  for (const id of ids.split(',')) {
    const job = jobs.get(id);
    if (job) profiles.push(job().body);
  }
  if (profiles.length === 0) return [ids, NO_PROFILE];
  return [ids, ok(profiles)];
}

/**
 * Returns a profile. Its emails are null until the lookup is complete, as with the real option
 * `return_cached_emails=false`.
 */
function profile(finding: Finding, memory: Memory) {
  const { subject, person, known, workEmail, homeEmail } = finding;
  const status = memory.inTurn(subject, UNFINISHED[known] ?? [], 'complete');
  const isComplete = status === 'complete';
  const { city, state } = person.organization.address;
  return {
    id: Number(subject),
    status,
    name: `${person.first} ${person.last}`,
    city,
    region: state,
    country_code: 'US',
    npi_data: { npi_number: person.npi, credentials: person.credential },
    current_employer_domain: person.organization.domain,
    current_work_email: isComplete ? workEmail : null,
    current_personal_email: isComplete ? homeEmail : null,
    emails: isComplete ? emailsOf(finding) : null,
    retry_after_seconds: isComplete ? undefined : POLL_SECONDS / memory.speed,
  };
}

function emailsOf({ workEmail, homeEmail, known }: Finding) {
  const [smtpValid, grade] = CHECKED[known] ?? ['valid', 'A'];
  const checkedAt = new Date(Date.now() - VALIDATED_AGO_MS).toISOString();
  const checked = { smtp_valid: smtpValid, last_validation_check: checkedAt, grade };
  const emails = [];
  if (workEmail !== null) {
    emails.push({ email: workEmail, type: 'professional', ...checked });
  }
  if (homeEmail !== null) {
    emails.push({ email: homeEmail, type: 'personal', ...checked });
  }
  return emails;
}

/** Returns an error response in RocketReach's format. */
function problem(status: number, message: string): SimResponse {
  return { status, body: { status, message } };
}
