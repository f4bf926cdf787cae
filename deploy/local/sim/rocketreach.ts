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
  deny: ({ headers }, apiKey) =>
    headers['api-key'] === apiKey ? null : problem(401, 'Invalid API Key'),
  routes: {
    'GET /person/lookup': aboutPerson(
      find,
      {
        nobody: NO_PROFILE,
        failing: problem(500, 'Unexpected error.'),
        limited: { ...problem(429, 'Request was throttled.'), headers: { 'retry-after': '1' } },
      },
      (finding, _question, memory) => {
        const job = () => ok(profile(finding, memory));
        memory.jobs.set(finding.subject, job);
        return job();
      },
    ),
    'GET /person/checkStatus': checkStatus,
  },
};

function find({ query }: Question) {
  const npi = query.get('npi_number') ?? '';
  return /^[0-9]{10}$/.test(npi)
    ? findingOf('rocketreach', npi)
    : problem(400, 'npi_number is required.');
}

function checkStatus({ query }: Question, { jobs }: Memory): Answered {
  const ids = query.get('ids') ?? '';
  const profiles = ids.split(',').flatMap((id) => jobs.get(id)?.().body ?? []);
  return [ids, profiles.length === 0 ? NO_PROFILE : ok(profiles)];
}

/**
 * Returns a profile. The email fields are null until the lookup is complete, as with
 * `return_cached_emails=false`.
 */
function profile({ subject, person, workEmail, homeEmail, known }: Finding, memory: Memory) {
  const status = memory.inTurn(subject, UNFINISHED[known] ?? [], 'complete');
  const complete = status === 'complete';
  const [smtpValid, grade] = CHECKED[known] ?? ['valid', 'A'];
  const checkedAt = new Date(Date.now() - VALIDATED_AGO_MS).toISOString();
  const emails = Object.entries({ professional: workEmail, personal: homeEmail }).flatMap(
    ([type, email]) =>
      email === null
        ? []
        : [{ email, smtp_valid: smtpValid, type, last_validation_check: checkedAt, grade }],
  );
  const { city, state } = person.organization.address;
  return {
    id: Number(subject),
    status,
    name: `${person.first} ${person.last}`,
    city,
    region: state,
    country_code: 'US',
    npi_data: { npi_number: person.npi, credentials: person.credential },
    emails: complete ? emails : null,
    retry_after_seconds: complete ? undefined : POLL_SECONDS / memory.speed,
  };
}

/** Returns the vendor's flat error body. */
function problem(status: number, message: string): Answer {
  return { status, body: { status, message } };
}
