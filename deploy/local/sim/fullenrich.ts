import { randomUUID } from 'node:crypto';
import { type Finding, search } from './knowledge.ts';
import {
  type Answer,
  type Answered,
  aboutPerson,
  contactOf,
  type Fields,
  type Memory,
  ok,
  type Question,
  type Source,
  textOf,
} from './wire.ts';

/** Polls until an enrichment is finished, normally and for a slow one. */
const RUNNING_POLLS = 1;
const SLOW_RUNNING_POLLS = 3;
const RUNNING = problem(
  400,
  'error.enrichment.in_progress',
  'Enrichment not ready, try again in 30 seconds',
);
const PERSONAL_CREDITS = 3;

/**
 * FullEnrich's wire format, version 2, according to its OpenAPI document. POST /contact/enrich/bulk
 * returns an id and charges for results. GET /contact/enrich/bulk/{id} returns 400 until the
 * enrichment is finished. The simulation reads only the first contact and makes no callbacks,
 * because our jobs have one contact and are polled.
 */
export const fullenrich: Source = {
  base: '/fullenrich/api/v2',
  deny: ({ headers }, apiKey) =>
    headers.authorization === `Bearer ${apiKey}`
      ? null
      : problem(401, 'error.api.key', 'Unknown api key'),
  routes: {
    'POST /contact/enrich/bulk': aboutPerson(find, {}, submit),
    'GET /contact/enrich/bulk/*': poll,
  },
};

function find({ body }: Question): Finding | Answer {
  const entry = firstOf(body);
  const contact = contactOf(entry, entry.domain, entry.company_name);
  if (contact) return search('fullenrich', contact);
  const empty =
    ['first_name', 'last_name'].find((field) => textOf(entry[field]) === null) ?? 'domain';
  return problem(400, `error.enrichment.${empty}.empty`, `${empty} cannot be empty`);
}

function firstOf({ data }: Fields): Fields {
  return Object(Array.isArray(data) ? data[0] : null);
}

function submit(finding: Finding, { body }: Question, memory: Memory): Answer {
  const id = randomUUID();
  const polls = finding.known === 'slow' ? SLOW_RUNNING_POLLS : RUNNING_POLLS;
  const running = Array<Answer>(polls).fill(RUNNING);
  const result = resultOf(id, finding, body);
  memory.jobs.set(id, () => memory.inTurn(id, running, result));
  return ok({ enrichment_id: id });
}

function poll({ id }: Question, { jobs }: Memory): Answered {
  const answer = jobs.get(id)?.();
  return [id, answer ?? problem(404, 'error.enrichment.not_found', 'Enrichment ID not found')];
}

function resultOf(id: string, finding: Finding, body: Fields): Answer {
  const { person, workEmail, homeEmail } = finding;
  const entry = firstOf(body);
  const wanted: readonly unknown[] = Array.isArray(entry.enrich_fields) ? entry.enrich_fields : [];
  const known = (email: string | null, field: string) =>
    email !== null && wanted.includes(field) ? [{ email, status: 'DELIVERABLE' }] : [];
  const work = known(workEmail, 'contact.work_emails');
  const personal = known(homeEmail, 'contact.personal_emails');
  const record = {
    contact_info: { work_emails: work, personal_emails: personal },
    profile: {
      first_name: person.first,
      last_name: person.last,
      location: { country_code: 'US', region: person.organization.address.state },
    },
  };
  const credits = work.length + personal.length * PERSONAL_CREDITS;
  return ok({ id, name: body.name, status: 'FINISHED', cost: { credits }, data: [record] });
}

function problem(status: number, code: string, message: string): Answer {
  return { status, body: { code, message } };
}
