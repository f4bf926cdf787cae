import { type BySituation, type Finding, findingOf, MAGIC } from './magic.ts';
import { digestOf, personOf } from './people.ts';
import {
  type Answer,
  type Answered,
  type Memory,
  ok,
  type Question,
  type Reply,
  type Source,
  troubleOf,
} from './wire.ts';

// RocketReach's wire format, version 2, as its OpenAPI gives it: GET /person/lookup by NPI, which is charged, and
// /person/checkStatus, and the same with universal credits, which shows only what `reveal_…` asks for.

/** Profile ids give the NPI back, so that a restarted simulator still knows the lookups it was asked for. */
const ID_OFFSET = 10_000_000_000;
const MAGIC_LATENCY_MS = 300;
const POLL_SECONDS = 3;
const MAX_IDS = 100;
const VALIDATED_AGO_MS = 3_600_000;
const NO_PROFILE = problem(404, 'The requested resource does not exist.');

const TROUBLES = {
  hanging: 'hang',
  failing: problem(500, 'Unexpected error.'),
  limited: { ...problem(429, 'Request was throttled.'), headers: { 'retry-after': '1' } },
} as const;
/** What the lookup and the status checks after it say, in turn, before `complete`. */
const UNFINISHED: BySituation<readonly string[]> = {
  slow: ['searching', 'progress'],
  unknown: ['progress', 'progress'],
};
/** `smtp_valid` and `grade`. */
const CHECKED: BySituation<readonly string[]> = {
  catchall: ['accept-all', 'B'],
  unknown: ['inconclusive', 'B-'],
};

export const rocketreach: Source = {
  base: '/rocketreach/api/v2',
  latencyMs: 100,
  deny: ({ headers }, apiKey) => (headers['api-key'] === apiKey ? null : problem(401, 'Invalid API Key')),
  notFound: problem(404, 'Not found.'),
  routes: {
    'GET /person/lookup': { operation: 'lookup', answer: legacyLookup },
    'GET /universal/person/lookup': { operation: 'lookup', answer: lookup },
    'GET /person/checkStatus': { operation: 'checkStatus', answer: checkStatus },
    'GET /universal/person/check_status': { operation: 'checkStatus', answer: checkStatus },
  },
};

/** How long RocketReach takes over a lookup, before the speed factor: 0.2 to 2.2 s by the digits. */
export function lookupLatencyMs(npi: string): number {
  return MAGIC.has(npi) ? MAGIC_LATENCY_MS : 200 + (digestOf(npi).readUInt16BE(0) / 0xffff) * 2000;
}

/** What a lookup shows that is not paid in universal credits. */
const EVERYTHING =
  'reveal_professional_email=true&reveal_personal_email=true&reveal_healthcare_enrichment=true';

function legacyLookup(question: Question, memory: Memory): Answered {
  return lookup({ ...question, query: new URLSearchParams(`${question.query}&${EVERYTHING}`) }, memory);
}

function lookup(question: Question, memory: Memory): Answered {
  const npi = question.query.get('npi_number') ?? '';
  return [npi, replyTo(npi, question, memory)];
}

function replyTo(npi: string, question: Question, memory: Memory): Reply {
  if (!/^[0-9]{10}$/.test(npi)) return problem(400, 'npi_number is required.');
  if (!reveals(question.query, 'professional_email') && !reveals(question.query, 'personal_email'))
    return problem(400, 'At least one enrichment type is required.');
  memory.jobs.set(npi, question);
  const finding = findingOf('rocketreach', personOf(npi));
  const latencyMs = lookupLatencyMs(npi);
  if (finding === null) return { ...NO_PROFILE, latencyMs };
  const trouble = troubleOf(TROUBLES, finding.situation, npi, memory);
  return trouble ?? { ...ok(profile(npi, finding, memory)), latencyMs };
}

function checkStatus({ query }: Question, memory: Memory): Answered {
  const subject = query.get('ids') ?? '';
  const ids = query.getAll('ids').flatMap((value) => value.split(','));
  if (ids.length > MAX_IDS || ids.some((id) => !/^[0-9]+$/.test(id)))
    return [subject, problem(400, 'ids is malformed.')];
  const profiles = ids.flatMap((id) => {
    const npi = String(Number(id) - ID_OFFSET);
    const finding = npi.length === 10 ? findingOf('rocketreach', personOf(npi)) : null;
    return finding ? [profile(npi, finding, memory)] : [];
  });
  return [subject, profiles.length === 0 ? NO_PROFILE : ok(profiles)];
}

/** With `return_cached_emails=false` the email fields are null until the lookup is complete. */
function profile(npi: string, { person, workEmail, homeEmail, situation }: Finding, memory: Memory) {
  const asked = memory.jobs.get(npi)?.query ?? new URLSearchParams(EVERYTHING);
  const status = UNFINISHED[situation]?.[memory.times(`shown ${npi}`)] ?? 'complete';
  const complete = status === 'complete';
  const cached = asked.get('return_cached_emails') === 'true';
  const professional = reveals(asked, 'professional_email') ? workEmail : null;
  const personal = reveals(asked, 'personal_email') ? homeEmail : null;
  const [smtpValid, grade] = CHECKED[situation] ?? ['valid', 'A'];
  const emailOf = (type: string, email: string | null) => ({
    email,
    smtp_valid: complete ? smtpValid : 'inconclusive',
    type,
    last_validation_check: complete ? new Date(Date.now() - VALIDATED_AGO_MS).toISOString() : null,
    grade,
  });
  const emails = [emailOf('professional', professional), emailOf('personal', personal)];
  const { credential, organization } = person;
  const { city, state } = organization.address;
  const license = { license_number: 'SIM-0', specialization: 'Family Medicine' };
  const npiData = { npi_number: person.npi, credentials: credential, ...license };
  return {
    id: Number(npi) + ID_OFFSET,
    status,
    name: `${person.first} ${person.last}`,
    linkedin_url: null,
    location: `${city}, ${state}, United States`,
    city,
    region: state,
    country: 'United States',
    country_code: 'US',
    current_title: 'Physician',
    current_employer: organization.dba ?? organization.name,
    current_employer_domain: organization.domain,
    ...(reveals(asked, 'healthcare_enrichment') ? { npi_data: npiData } : {}),
    return_cached_emails: cached,
    recommended_email: complete ? (professional ?? personal) : null,
    recommended_personal_email: complete ? personal : null,
    recommended_professional_email: complete ? professional : null,
    emails: complete || cached ? emails.filter(({ email }) => email !== null) : null,
    phones: [],
    ...(complete ? {} : { retry_after_seconds: POLL_SECONDS / memory.speed }),
  };
}

function reveals(asked: URLSearchParams, what: string): boolean {
  return asked.get(`reveal_${what}`) === 'true';
}

/** The vendor's flat error envelope. */
function problem(status: number, message: string): Answer {
  return { status, body: { status, message } };
}
