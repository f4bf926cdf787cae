import { createHash } from 'node:crypto';
import { answer, HANG, onceEach, type SimOptions, turnedAway } from './answer.ts';
import { type Situation, subjectOf } from './findings.ts';
import { isRefusal, type Order, type Refusal, readSubmission, type Submission } from './fullenrich-order.ts';
import type { Answered, Reply, SimRequest, VendorSim } from './reply.ts';

// FullEnrich's wire format, version 2, as its OpenAPI gives it: POST /contact/enrich/bulk answers an id, and GET
// /contact/enrich/bulk/{id} answers 400 until the enrichment is finished. Its callbacks are not simulated.

const PATH = '/contact/enrich/bulk';
const WORK_CREDITS = 1;
const PERSONAL_CREDITS = 3;
const LATENCY_MS = 200;
/** How often an enrichment is still running when it is asked for. */
const RUNNING_POLLS = 1;
const SLOW_RUNNING_POLLS = 3;
/** The oldest are forgotten beyond these. */
const MAX_ENRICHMENTS = 10_000;

interface Enrichment extends Submission {
  polls: number;
}

/** Operations in the log: `submit` about NPIs or names, which is charged for what is found, and `poll` about an id. */
export function createFullEnrichSim({ apiKey }: SimOptions): VendorSim {
  const enrichments = new Map<string, Enrichment>();
  const limits = onceEach();
  let submitted = 0;

  function submit(request: SimRequest): Answered {
    const submission = readSubmission(request);
    if (isRefusal(submission)) return { operation: 'submit', subject: '', reply: refuse(400, submission) };
    const subject = submission.orders.map(subjectOf).join(',');
    return { operation: 'submit', subject, reply: accept(submission, subject) };
  }

  function accept(submission: Submission, subject: string): Reply {
    const situations = situationsOf(submission);
    if (situations.has('hanging')) return HANG;
    if (situations.has('failing')) return answer(500, { code: 'error.internal', message: 'Internal error' });
    if (situations.has('limited') && limits.first(subject)) {
      return answer(429, { code: 'error.rate.limit', message: 'Too many requests. Try again in 1m' });
    }
    submitted += 1;
    const id = uuidOf(`enrichment ${submitted}`);
    enrichments.set(id, { ...submission, polls: 0 });
    if (enrichments.size > MAX_ENRICHMENTS) enrichments.delete(enrichments.keys().next().value ?? '');
    return answer(200, { enrichment_id: id }, { latencyMs: LATENCY_MS });
  }

  function poll(id: string): Reply {
    const enrichment = enrichments.get(id);
    if (enrichment === undefined) {
      return refuse(404, { code: 'not_found', message: 'Enrichment ID not found' });
    }
    enrichment.polls += 1;
    const situations = situationsOf(enrichment);
    if (enrichment.polls <= (situations.has('slow') ? SLOW_RUNNING_POLLS : RUNNING_POLLS)) {
      const message = 'Enrichment not ready, try again in 30 seconds';
      return refuse(400, { code: 'in_progress', message });
    }
    // The one error whose body is a whole result.
    if (situations.has('broke')) return answer(402, resultBody(id, enrichment, 'CREDITS_INSUFFICIENT'));
    const status = situations.has('canceled') ? 'CANCELED' : 'FINISHED';
    return answer(200, resultBody(id, enrichment, status), { latencyMs: LATENCY_MS });
  }

  return {
    id: 'fullenrich',
    answer(request) {
      const denied = deny(request, apiKey);
      if (denied !== null) return turnedAway(denied);
      const { method, path } = request;
      if (method === 'POST' && path === PATH) return submit(request);
      if (method === 'GET' && path.startsWith(`${PATH}/`)) {
        const id = path.slice(PATH.length + 1);
        return { operation: 'poll', subject: id, reply: poll(id) };
      }
      return turnedAway(answer(404, { code: 'error.not_found', message: 'Not found' }));
    },
    reset() {
      enrichments.clear();
      limits.reset();
    },
  };
}

function deny({ headers: { authorization } }: SimRequest, apiKey: string): Reply | null {
  const refused = (code: string, message: string) => answer(401, { code, message });
  if (authorization === undefined) {
    return refused('error.authorization.not_set', 'Authorization headers not set');
  }
  if (!/^bearer /i.test(authorization)) {
    return refused('error.authorization.not_bearer', "Authorization headers do not have prefix 'bearer'");
  }
  return authorization.slice('bearer '.length) === apiKey
    ? null
    : refused('error.api.key', 'Unknown api key');
}

function refuse(status: number, { code, message }: Refusal): Reply {
  return answer(status, { code: `error.enrichment.${code}`, message });
}

function situationsOf({ orders }: Submission): ReadonlySet<Situation | undefined> {
  return new Set(orders.map(({ finding }) => finding?.situation));
}

function resultBody(id: string, { name, orders }: Submission, status: string) {
  const data = status === 'FINISHED' ? orders.map(recordOf) : orders.map(recordWithoutFinding);
  const credits = data.reduce((sum, { cost }) => sum + cost, 0);
  return { id, name, status, cost: { credits }, data: data.map(({ record }) => record) };
}

function recordWithoutFinding(order: Order) {
  return recordOf({ ...order, finding: null });
}

function recordOf({ first, last, domain, company, fields, custom, finding }: Order) {
  const status = EMAIL_STATUS[finding?.situation ?? 'found'] ?? 'DELIVERABLE';
  const known = (email: string | null | undefined, field: string) =>
    email && fields.includes(field) ? [{ email, status }] : [];
  const work = known(finding?.workEmail, 'contact.work_emails');
  const personal = known(finding?.homeEmail, 'contact.personal_emails');
  const record = {
    input: {
      first_name: first,
      last_name: last,
      ...(domain === null ? {} : { company_domain: domain }),
      ...(company === null ? {} : { company_name: company }),
    },
    custom,
    contact_info: {
      ...(work[0] ? { most_probable_work_email: work[0] } : {}),
      ...(personal[0] ? { most_probable_personal_email: personal[0] } : {}),
      work_emails: work,
      personal_emails: personal,
      phones: [],
    },
    ...(finding === null ? {} : { profile: profileBody(finding.person) }),
  };
  return { record, cost: work.length * WORK_CREDITS + personal.length * PERSONAL_CREDITS };
}

const EMAIL_STATUS: Readonly<Partial<Record<Situation, string>>> = {
  probable: 'HIGH_PROBABILITY',
  catchall: 'CATCH_ALL',
  missing: 'INVALID',
};

function profileBody({ npi, first, last, organization }: NonNullable<Order['finding']>['person']) {
  return {
    id: uuidOf(npi),
    full_name: `${first} ${last}`,
    first_name: first,
    last_name: last,
    location: {
      country: 'United States',
      country_code: 'US',
      city: organization.address.city,
      region: organization.address.state,
    },
    employment: { current: { company: { name: organization.name, domain: organization.domain } } },
  };
}

/** In a UUID's form, the same for the same name. */
function uuidOf(name: string): string {
  const hex = createHash('sha256').update(name).digest('hex');
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12}).*$/, '$1-$2-$3-$4-$5');
}
