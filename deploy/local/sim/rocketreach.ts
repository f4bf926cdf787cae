import { type Finding, findingOf } from './knowledge.ts';
import type { ByKnown } from './magic.ts';
import {
  type Answer,
  type Answered,
  aboutPerson,
  type Memory,
  ok,
  type Question,
  type Source,
} from './wire.ts';

const POLL_SECONDS = 3;
const VALIDATED_AGO_MS = 3_600_000;
const NO_PROFILE = problem(404, 'The requested resource does not exist.');
/** Responses that replace a profile. */
const INSTEAD: ByKnown<Answer> = {
  nobody: NO_PROFILE,
  failing: problem(500, 'Unexpected error.'),
  limited: { ...problem(429, 'Request was throttled.'), headers: { 'retry-after': '1' } },
};

/** Statuses that the lookup and its status checks return in turn before `complete`. */
const UNFINISHED: ByKnown<readonly string[]> = {
  slow: ['searching', 'progress'],
  unknown: ['progress', 'progress'],
};
/** `smtp_valid` and `grade`. Any other kind gets `valid` and `A`. */
const CHECKED: ByKnown<readonly [string, string]> = {
  catchall: ['accept-all', 'B'],
  unknown: ['inconclusive', 'B-'],
};

/**
 * RocketReach's wire format, version 2, according to its OpenAPI document: GET /person/lookup by
 * NPI, which is charged, and /person/checkStatus. Universal credits have other routes and are not
 * simulated.
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

function find({ query }: Question): Finding | Answer {
  const npi = query.get('npi_number') ?? '';
  if (!/^[0-9]{10}$/.test(npi)) return problem(400, 'npi_number is required.');
  return findingOf('rocketreach', npi);
}

function lookUp(finding: Finding, _question: Question, memory: Memory): Answer {
  const job = () => ok(profile(finding, memory));
  memory.jobs.set(finding.subject, job);
  return job();
}

function checkStatus({ query }: Question, { jobs }: Memory): Answered {
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
 * Returns a profile. The email fields are null until the lookup is complete, as with
 * `return_cached_emails=false`.
 */
function profile(finding: Finding, memory: Memory) {
  const { subject, person, known } = finding;
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
    emails: isComplete ? emailsOf(finding) : null,
    retry_after_seconds: isComplete ? undefined : POLL_SECONDS / memory.speed,
  };
}

function emailsOf({ workEmail, homeEmail, known }: Finding) {
  const [smtpValid, grade] = CHECKED[known] ?? ['valid', 'A'];
  const checkedAt = new Date(Date.now() - VALIDATED_AGO_MS).toISOString();
  const checked = { smtp_valid: smtpValid, last_validation_check: checkedAt, grade };
  const emails = [];
  if (workEmail !== null) emails.push({ email: workEmail, type: 'professional', ...checked });
  if (homeEmail !== null) emails.push({ email: homeEmail, type: 'personal', ...checked });
  return emails;
}

/** Returns the vendor's flat error body. */
function problem(status: number, message: string): Answer {
  return { status, body: { status, message } };
}
