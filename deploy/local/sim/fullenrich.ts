import { randomUUID } from 'node:crypto';
import { type Finding, search } from './knowledge.ts';
import {
  aboutPerson,
  contactOf,
  type Fields,
  type Memory,
  ok,
  type SimRequest,
  type SimResponse,
  type Source,
  type SubjectResponse,
  textOf,
} from './wire.ts';

/**
 * How many polls get the response that the enrichment is not finished, for a normal and for a slow
 * enrichment.
 */
const RUNNING_POLLS = 1;
const SLOW_RUNNING_POLLS = 3;
const RUNNING = problem(
  400,
  'error.enrichment.in_progress',
  'Enrichment not ready, try again in 30 seconds',
);
const PERSONAL_CREDITS = 3;

/**
 * Simulates FullEnrich's API, version 2, according to its OpenAPI document. `POST
 * /contact/enrich/bulk` returns an id. `GET /contact/enrich/bulk/{id}` returns 400 until the
 * enrichment is finished. The simulation only reads the first contact of a request and does not
 * call webhooks, because the service sends one contact per request and polls.
 */
export const fullenrich: Source = {
  base: '/fullenrich/api/v2',
  deny({ headers }, apiKey) {
    if (headers.authorization === `Bearer ${apiKey}`) return null;
    return problem(401, 'error.api.key', 'Unknown api key');
  },
  routes: {
    'POST /contact/enrich/bulk': aboutPerson(find, {}, submit),
    'GET /contact/enrich/bulk/*': poll,
  },
};

function find({ body }: SimRequest): Finding | SimResponse {
  const entry = firstOf(body);
  const contact = contactOf(entry, entry.domain, entry.company_name);
  if (contact) return search('fullenrich', contact);
  const missing = missingField(entry);
  return problem(400, `error.enrichment.${missing}.empty`, `${missing} cannot be empty`);
}

function missingField(entry: Fields): string {
  if (textOf(entry.first_name) === null) return 'first_name';
  if (textOf(entry.last_name) === null) return 'last_name';
  return 'domain';
}

/** Returns the first contact of a request, or an empty object if there isn't one. */
function firstOf({ data }: Fields): Fields {
  if (!Array.isArray(data)) return {};
  return Object(data[0]);
}

function submit(finding: Finding, { body }: SimRequest, memory: Memory): SimResponse {
  const id = randomUUID();
  const polls = finding.known === 'slow' ? SLOW_RUNNING_POLLS : RUNNING_POLLS;
  const running = Array<SimResponse>(polls).fill(RUNNING);
  const result = resultOf(id, finding, body);
  memory.jobs.set(id, () => memory.inTurn(id, running, result));
  return ok({ enrichment_id: id });
}

function poll({ id }: SimRequest, { jobs }: Memory): SubjectResponse {
  const job = jobs.get(id);
  if (job) return [id, job()];
  return [id, problem(404, 'error.enrichment.not_found', 'Enrichment ID not found')];
}

function resultOf(id: string, finding: Finding, body: Fields): SimResponse {
  const { person, workEmail, homeEmail } = finding;
  const { enrich_fields: fields } = firstOf(body);
  const work = emailsOf(workEmail, 'contact.work_emails', fields);
  const personal = emailsOf(homeEmail, 'contact.personal_emails', fields);
  const record = {
    contact_info: { work_emails: work, personal_emails: personal },
    profile: {
      first_name: person.first,
      last_name: person.last,
      location: { country_code: 'US', region: person.organization.address.state },
    },
  };
  const credits = work.length + personal.length * PERSONAL_CREDITS;
  return ok({
    id,
    name: body.name,
    status: 'FINISHED',
    cost: { credits },
    data: [record],
  });
}

/**
 * Returns a list with the email, or an empty list if there is no email or the request does not ask
 * for the field.
 */
function emailsOf(email: string | null, field: string, requested: unknown) {
  const isRequested = Array.isArray(requested) && requested.includes(field);
  if (email === null || !isRequested) return [];
  return [{ email, status: 'DELIVERABLE' }];
}

function problem(status: number, code: string, message: string): SimResponse {
  return { status, body: { code, message } };
}
