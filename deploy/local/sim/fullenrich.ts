import { randomUUID } from 'node:crypto';
import { type BySituation, type Contact, contactOf, type Situation, search, textOf } from './magic.ts';
import type { SimPerson } from './people.ts';
import {
  type Answer,
  type Answered,
  type Memory,
  ok,
  type Question,
  type Source,
  troubleOf,
} from './wire.ts';

// FullEnrich's wire format, version 2, as its OpenAPI gives it: POST /contact/enrich/bulk, which is charged for what is
// found, answers an id, and GET /contact/enrich/bulk/{id} answers 400 until the enrichment is finished. Its callbacks
// are not simulated.

/** How often an enrichment is still running when it is asked for, and a slow one. */
const RUNNING_POLLS = 1;
const SLOW_RUNNING_POLLS = 3;
/** The oldest enrichments are forgotten beyond these. */
const MAX_ENRICHMENTS = 10_000;
const PERSONAL_CREDITS = 3;
const FIELDS: readonly unknown[] = ['contact.work_emails', 'contact.personal_emails', 'contact.phones'];

const TROUBLES = {
  hanging: 'hang',
  failing: problem(500, 'error.internal', 'Internal error'),
  limited: problem(429, 'error.rate.limit', 'Too many requests. Try again in 1m'),
} as const;
const STATUS: BySituation<string> = {
  probable: 'HIGH_PROBABILITY',
  catchall: 'CATCH_ALL',
  missing: 'INVALID',
};

type Fields = Readonly<Record<string, unknown>>;

/** Why an entry of a submission is refused, the first rule that holds: the code without its `error.enrichment.`. */
const REFUSALS: readonly (readonly [code: string, message: string, holds: (entry: Fields) => boolean])[] = [
  ['first_name.empty', 'First name cannot be empty', ({ first_name }) => textOf(first_name) === null],
  ['last_name.empty', 'Last name cannot be empty', ({ last_name }) => textOf(last_name) === null],
  ['domain.empty', 'Domain cannot be empty', (entry) => contactIn(entry) === null],
  ['enrich_fields.empty', 'enrichFields cannot be empty', (entry) => fieldsOf(entry).length === 0],
  [
    'enrich_field.value',
    'enrichField not valid',
    (entry) => !fieldsOf(entry).every((one) => FIELDS.includes(one)),
  ],
  [
    'custom.key.exceeded',
    'Custom field contains too many keys (max: 10 keys)',
    ({ custom }) => Object.keys(custom ?? {}).length > 10,
  ],
  [
    'custom.value.exceeded',
    'Custom field value max len exceeded (max: 100 character)',
    ({ custom }) =>
      !Object.values(custom ?? {}).every((value) => typeof value === 'string' && value.length <= 100),
  ],
];

export const fullenrich: Source = {
  base: '/fullenrich/api/v2',
  latencyMs: 200,
  deny({ headers: { authorization } }, apiKey) {
    if (authorization === undefined)
      return problem(401, 'error.authorization.not_set', 'Authorization headers not set');
    const [, key] = /^bearer (.*)$/i.exec(authorization) ?? [];
    if (key === apiKey) return null;
    return key === undefined
      ? problem(401, 'error.authorization.not_bearer', "Authorization headers do not have prefix 'bearer'")
      : problem(401, 'error.api.key', 'Unknown api key');
  },
  notFound: problem(404, 'error.not_found', 'Not found'),
  routes: {
    'POST /contact/enrich/bulk': { operation: 'submit', answer: submit },
    'GET /contact/enrich/bulk/*': { operation: 'poll', answer: poll },
  },
};

function submit(question: Question, memory: Memory): Answered {
  const refused = refusalOf(question.body);
  if (refused) return ['', refused];
  const orders = ordersIn(question.body);
  const subject = orders.map((order) => order.subject).join(',');
  for (const { finding } of orders) {
    const trouble = troubleOf(TROUBLES, finding?.situation ?? 'found', subject, memory);
    if (trouble) return [subject, trouble];
  }
  const id = randomUUID();
  memory.jobs.set(id, question);
  if (memory.jobs.size > MAX_ENRICHMENTS) memory.jobs.delete(memory.jobs.keys().next().value ?? '');
  return [subject, ok({ enrichment_id: id })];
}

function poll({ id }: Question, memory: Memory): Answered {
  const job = memory.jobs.get(id);
  if (job === undefined) return [id, refusal(404, 'not_found', 'Enrichment ID not found')];
  const orders = ordersIn(job.body);
  const has = (situation: Situation) => orders.some(({ finding }) => finding?.situation === situation);
  if (memory.times(`polled ${id}`) < (has('slow') ? SLOW_RUNNING_POLLS : RUNNING_POLLS))
    return [id, refusal(400, 'in_progress', 'Enrichment not ready, try again in 30 seconds')];
  const status = has('broke') ? 'CREDITS_INSUFFICIENT' : has('canceled') ? 'CANCELED' : 'FINISHED';
  const data = orders.map((order) => recordOf(status === 'FINISHED' ? order : { ...order, finding: null }));
  const found = data.map(({ contact_info }) => contact_info);
  const costs = found.map((one) => one.work_emails.length + one.personal_emails.length * PERSONAL_CREDITS);
  const credits = costs.reduce((sum, cost) => sum + cost);
  const answer = ok({ id, name: job.body.name, status, cost: { credits }, data });
  // The one error whose body is a whole result.
  return [id, has('broke') ? { ...answer, status: 402 } : answer];
}

function refusalOf({ name, data }: Fields): Answer | undefined {
  if (textOf(name) === null) return refusal(400, 'name.empty', 'Enrichment name not set');
  if (!Array.isArray(data) || data.length === 0) return refusal(400, 'data.empty', 'Data is empty');
  for (const entry of data) {
    const [code, message] = REFUSALS.find(([, , holds]) => holds(Object(entry))) ?? [];
    if (code && message) return refusal(400, code, message);
  }
  return undefined;
}

type Order = ReturnType<typeof ordersIn>[number];

/** The contacts of a submission that was accepted. */
function ordersIn({ data }: Fields) {
  return (data as Fields[]).flatMap((entry) => {
    const contact = contactIn(entry);
    return contact ? [{ ...contact, ...search('fullenrich', contact), entry }] : [];
  });
}

function contactIn(entry: Fields): Contact | null {
  return contactOf(entry, { domain: entry.domain, company: entry.company_name });
}

function fieldsOf({ enrich_fields: fields }: Fields): readonly unknown[] {
  return Array.isArray(fields) ? fields : [];
}

function recordOf({ entry, first, last, domain, company, finding }: Order) {
  const status = STATUS[finding?.situation ?? 'found'] ?? 'DELIVERABLE';
  const known = (email: string | null | undefined, field: string) =>
    email && fieldsOf(entry).includes(field) ? [{ email, status }] : [];
  const work = known(finding?.workEmail, 'contact.work_emails');
  const personal = known(finding?.homeEmail, 'contact.personal_emails');
  return {
    input: {
      first_name: first,
      last_name: last,
      ...(domain === null ? {} : { company_domain: domain }),
      ...(company === null ? {} : { company_name: company }),
    },
    // Comes back as it was sent.
    custom: entry.custom ?? {},
    contact_info: {
      ...(work[0] ? { most_probable_work_email: work[0] } : {}),
      ...(personal[0] ? { most_probable_personal_email: personal[0] } : {}),
      work_emails: work,
      personal_emails: personal,
      phones: [],
    },
    ...(finding === null ? {} : { profile: profileOf(finding.person) }),
  };
}

function profileOf({ npi, first, last, organization }: SimPerson) {
  const { name, domain, address } = organization;
  return {
    id: `00000000-0000-4000-8000-00${npi}`,
    full_name: `${first} ${last}`,
    first_name: first,
    last_name: last,
    location: { country: 'United States', country_code: 'US', city: address.city, region: address.state },
    employment: { current: { company: { name, domain } } },
  };
}

function refusal(status: number, code: string, message: string): Answer {
  return problem(status, `error.enrichment.${code}`, message);
}

function problem(status: number, code: string, message: string): Answer {
  return { status, body: { code, message } };
}
