import { type Finding, findingOf } from './knowledge.ts';
import type { BySituation } from './magic.ts';
import {
  type Answer,
  type Answered,
  aboutPerson,
  type Memory,
  ok,
  type Question,
  type Route,
  type Source,
} from './wire.ts';

const POLL_SECONDS = 3;
const VALIDATED_AGO_MS = 3_600_000;
const NO_PROFILE = problem(404, 'The requested resource does not exist.');

/** What the lookup and the status checks after it say, in turn, before `complete`. */
const UNFINISHED: BySituation<readonly string[]> = {
  slow: ['searching', 'progress'],
  unknown: ['progress', 'progress'],
};
/** `smtp_valid` and `grade`; `valid` and `A` in any other situation. */
const CHECKED: BySituation<readonly [string, string]> = {
  catchall: ['accept-all', 'B'],
  unknown: ['inconclusive', 'B-'],
};

/** Whether a question wants one of these to be shown: `professional_email`, `personal_email`, `healthcare_enrichment`. */
type Reveals = (question: Question, what: string) => boolean;

/**
 * RocketReach's wire format, version 2, as its OpenAPI gives it: GET /person/lookup by NPI, which is charged, and
 * /person/checkStatus, and the same with universal credits, which shows only what `reveal_…` asks for.
 */
export const rocketreach: Source = {
  base: '/rocketreach/api/v2',
  deny: ({ headers }, apiKey) => (headers['api-key'] === apiKey ? null : problem(401, 'Invalid API Key')),
  routes: {
    'GET /person/lookup': lookup(() => true),
    'GET /universal/person/lookup': lookup(({ query }, what) => query.get(`reveal_${what}`) === 'true'),
    'GET /person/checkStatus': checkStatus,
    'GET /universal/person/check_status': checkStatus,
  },
};

function lookup(reveals: Reveals): Route {
  return aboutPerson(
    (question) => {
      const npi = question.query.get('npi_number') ?? '';
      if (!/^[0-9]{10}$/.test(npi)) return problem(400, 'npi_number is required.');
      return reveals(question, 'professional_email') || reveals(question, 'personal_email')
        ? findingOf('rocketreach', npi)
        : problem(400, 'At least one enrichment type is required.');
    },
    {
      nobody: NO_PROFILE,
      failing: problem(500, 'Unexpected error.'),
      limited: { ...problem(429, 'Request was throttled.'), headers: { 'retry-after': '1' } },
    },
    (finding, question, memory) => {
      const job = () => ok(profile(finding, (what) => reveals(question, what), memory));
      memory.jobs.set(finding.subject, job);
      return job();
    },
  );
}

function checkStatus({ query }: Question, { jobs }: Memory): Answered {
  const ids = query.get('ids') ?? '';
  const profiles = ids.split(',').flatMap((id) => jobs.get(id)?.().body ?? []);
  return [ids, profiles.length === 0 ? NO_PROFILE : ok(profiles)];
}

/** The email fields are null until the lookup is complete, as `return_cached_emails=false` wants it. */
function profile(finding: Finding, reveals: (what: string) => boolean, memory: Memory) {
  const { subject, person, workEmail, homeEmail, situation } = finding;
  const status = memory.inTurn(subject, UNFINISHED[situation] ?? [], 'complete');
  const complete = status === 'complete';
  const [smtpValid, grade] = CHECKED[situation] ?? ['valid', 'A'];
  const professional = reveals('professional_email') ? workEmail : null;
  const personal = reveals('personal_email') ? homeEmail : null;
  const checkedAt = new Date(Date.now() - VALIDATED_AGO_MS).toISOString();
  const emails = Object.entries({ professional, personal }).flatMap(([type, email]) =>
    email === null ? [] : [{ email, smtp_valid: smtpValid, type, last_validation_check: checkedAt, grade }],
  );
  const { credential, organization } = person;
  const { city, state } = organization.address;
  const npiData = { npi_number: person.npi, credentials: credential, specialization: 'Family Medicine' };
  return {
    id: Number(subject),
    status,
    name: `${person.first} ${person.last}`,
    city,
    region: state,
    country_code: 'US',
    npi_data: reveals('healthcare_enrichment') ? npiData : undefined,
    recommended_professional_email: complete ? professional : null,
    recommended_personal_email: complete ? personal : null,
    emails: complete ? emails : null,
    retry_after_seconds: complete ? undefined : POLL_SECONDS / memory.speed,
  };
}

/** The vendor's flat error envelope. */
function problem(status: number, message: string): Answer {
  return { status, body: { status, message } };
}
