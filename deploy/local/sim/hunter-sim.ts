import { answer, HANG, onceEach, type SimOptions, text, turnedAway } from './answer.ts';
import { type Contact, type Finding, findingOf, type Situation, subjectOf } from './findings.ts';
import type { Answered, Reply, SimRequest, VendorSim } from './reply.ts';

// Hunter's wire format, version 2, as its OpenAPI and its documentation give it: GET /email-finder. 202 means that
// the same question is to be asked again, 403 that it came too fast, 429 that the plan is used up.

const LATENCY_MS = 500;
/** How often a slow search is answered 202 before its result. */
const SLOW_ANSWERS = 2;
const VERIFIED_AGO_MS = 86_400_000;

/** Operation in the log: `find`, about an NPI or a name, charged for an email. */
export function createHunterSim({ apiKey }: SimOptions): VendorSim {
  const limits = onceEach();
  /** How often each slow search has been asked. */
  const asked = new Map<string, number>();

  function find({ query }: SimRequest): Answered {
    const contact = readContact(query);
    if (contact === null) {
      const reply = refuse(400, 'wrong_params', 'You are missing a name, or a domain or company');
      return { operation: 'find', subject: '', reply };
    }
    const subject = subjectOf(contact);
    return { operation: 'find', subject, reply: tell(findingOf('hunter', contact), contact, subject) };
  }

  function tell(finding: Finding | null, contact: Contact, subject: string): Reply {
    if (finding === null) return refuse(404, 'not_found', 'No email was found');
    switch (finding.situation) {
      case 'hanging':
        return HANG;
      case 'failing':
        return refuse(500, 'internal_error', 'Something went wrong on our side');
      case 'broke':
        return refuse(429, 'too_many_requests', 'The limit of searches of your plan is reached');
      case 'optedout':
        return refuse(451, 'claimed_email', 'This person asked us to stop processing their personal data');
      case 'limited':
        if (limits.first(subject)) return refuse(403, 'forbidden', 'The rate limit is reached');
        break;
      case 'slow': {
        const times = asked.get(subject) ?? 0;
        asked.set(subject, times + 1);
        if (times < SLOW_ANSWERS) return answer(202, {}, { latencyMs: LATENCY_MS });
      }
    }
    return answer(200, resultBody(finding, contact), { latencyMs: LATENCY_MS });
  }

  return {
    id: 'hunter',
    answer(request) {
      const { method, path, headers, query } = request;
      const bearer = headers.authorization?.replace(/^bearer /i, '');
      if (![headers['x-api-key'], bearer, query.get('api_key')].includes(apiKey)) {
        return turnedAway(refuse(401, 'authentication_failed', 'No user found for the API key supplied'));
      }
      if (method === 'GET' && path === '/email-finder') return find(request);
      return turnedAway(refuse(404, 'not_found', 'There is nothing here'));
    },
    reset() {
      limits.reset();
      asked.clear();
    },
  };
}

function refuse(code: number, id: string, details: string): Reply {
  return answer(code, { errors: [{ id, code, details }] });
}

function readContact(query: URLSearchParams): Contact | null {
  const [head = null, ...tail] = text(query.get('full_name'))?.split(/\s+/) ?? [];
  const first = text(query.get('first_name')) ?? head;
  const last = text(query.get('last_name')) ?? text(tail.join(' '));
  const domain = text(query.get('domain'));
  const company = text(query.get('company'));
  if (first === null || last === null || (domain === null && company === null)) return null;
  return { first, last, domain, company };
}

const STATUS: Readonly<Partial<Record<Situation, string>>> = {
  catchall: 'accept_all',
  unknown: 'unknown',
  missing: 'invalid',
  webmail: 'webmail',
  disposable: 'disposable',
};

function resultBody({ person, workEmail, situation }: Finding, contact: Contact) {
  const { first, last, organization } = person;
  const date = new Date(Date.now() - VERIFIED_AGO_MS).toISOString().slice(0, 10);
  return {
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
      verification: { date, status: STATUS[situation] ?? 'valid' },
    },
    meta: {
      params: {
        first_name: contact.first,
        last_name: contact.last,
        full_name: null,
        domain: contact.domain,
        company: contact.company,
        max_duration: null,
      },
    },
  };
}
