import {
  type Answer,
  answer,
  HANG,
  isRecord,
  jsonObject,
  onceEach,
  type SimOptions,
  text,
  turnedAway,
} from './answer.ts';
import { type Contact, type Finding, findingOf, subjectOf } from './findings.ts';
import type { Answered, Reply, SimRequest, VendorSim } from './reply.ts';

// Prospeo's wire format as its public documentation gives it: POST /enrich-person, answered at once. Everything
// that went wrong, a person it does not know among them, is 400 with an `error_code`.

const LATENCY_MS = 400;
const LIMIT_PER_MINUTE = 60;
const LIMIT_PER_DAY = 2000;

/** Operation in the log: `enrich`, about an NPI or a name, charged for a match. */
export function createProspeoSim({ apiKey, speed }: SimOptions): VendorSim {
  const limits = onceEach();
  const bought = onceEach();

  function enrich(request: SimRequest): Answered {
    const body = jsonObject(request);
    const data = isRecord(body?.data) ? body.data : null;
    if (data === null) return { operation: 'enrich', subject: '', reply: refuse('INVALID_REQUEST') };
    const contact = readContact(data);
    if (contact === null) return { operation: 'enrich', subject: '', reply: refuse('INVALID_DATAPOINTS') };
    const subject = subjectOf(contact);
    const finding = findingOf('prospeo', contact);
    return {
      operation: 'enrich',
      subject,
      reply: tell(finding, subject, body?.only_verified_email === true),
    };
  }

  function tell(finding: Finding | null, subject: string, onlyVerified: boolean): Reply {
    const situation = finding?.situation;
    if (situation === 'hanging') return HANG;
    if (situation === 'failing') return answer(500, { error: true, error_code: 'INTERNAL_ERROR' });
    if (situation === 'broke') return refuse('INSUFFICIENT_CREDITS');
    if (situation === 'limited' && limits.first(subject)) {
      return withLimits({ ...refuse('RATE_LIMITED'), status: 429 }, 0);
    }
    const verified = situation !== 'unknown' && situation !== 'catchall';
    if (finding === null || finding.workEmail === null || (onlyVerified && !verified))
      return refuse('NO_MATCH');
    const body = resultBody(finding, finding.workEmail, verified);
    return answer(200, { ...body, free_enrichment: !bought.first(subject) }, { latencyMs: LATENCY_MS });
  }

  /** Every answer carries how much may still be asked. */
  function withLimits(reply: Answer, left: number): Answer {
    const headers = {
      'x-second-rate-limit': '5',
      'x-minute-rate-limit': String(LIMIT_PER_MINUTE),
      'x-minute-request-left': String(left),
      'x-minute-reset-seconds': String(Math.ceil(60 / speed)),
      'x-daily-rate-limit': String(LIMIT_PER_DAY),
      'x-daily-request-left': String(LIMIT_PER_DAY - 1),
      'x-daily-reset-seconds': '86400',
    };
    return { ...reply, headers };
  }

  return {
    id: 'prospeo',
    answer(request) {
      const { method, path, headers } = request;
      if (headers['x-key'] !== apiKey) return turnedAway({ ...refuse('INVALID_API_KEY'), status: 401 });
      if (method !== 'POST' || path !== '/enrich-person') {
        return turnedAway({ ...refuse('INVALID_REQUEST'), status: 404 });
      }
      const answered = enrich(request);
      const { reply } = answered;
      if (reply.kind === 'hang' || 'x-minute-request-left' in reply.headers) return answered;
      return { ...answered, reply: withLimits(reply, LIMIT_PER_MINUTE - 1) };
    },
    reset() {
      limits.reset();
      bought.reset();
    },
  };
}

function refuse(errorCode: string): Answer {
  return answer(400, { error: true, error_code: errorCode });
}

/** A name in one or two parts, and something that names the company. */
function readContact(data: Record<string, unknown>): Contact | null {
  const [head = null, ...tail] = text(data.full_name)?.split(/\s+/) ?? [];
  const first = text(data.first_name) ?? head;
  const last = text(data.last_name) ?? text(tail.join(' '));
  const domain =
    text(data.company_website)
      ?.replace(/^https?:\/\//, '')
      .replace(/\/.*$/, '') ?? null;
  const company = text(data.company_name);
  if (first === null || last === null || (domain === null && company === null)) return null;
  return { first, last, domain, company };
}

function resultBody({ person, situation }: Finding, workEmail: string, verified: boolean) {
  const { npi, first, last, organization } = person;
  const revealed = situation !== 'masked';
  return {
    error: false,
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
        email: revealed ? workEmail : workEmail.replace(/^(.)[^@]*/, '$1*****'),
        verification_method: verified ? 'SMTP' : null,
        email_mx_provider: 'Google',
      },
      mobile: { status: 'UNAVAILABLE', revealed: false, mobile: null },
      location: {
        country: 'United States',
        country_code: 'US',
        state: organization.address.state,
        city: organization.address.city,
      },
    },
    company: {
      name: organization.dba ?? organization.name,
      website: `https://${organization.domain}`,
      domain: organization.domain,
    },
  };
}
