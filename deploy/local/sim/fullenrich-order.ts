import { isRecord, jsonObject, text } from './answer.ts';
import { type Contact, type Finding, findingOf } from './findings.ts';
import type { SimRequest } from './reply.ts';

// What FullEnrich accepts and refuses of a submission, in the words of its OpenAPI.

const FIELDS: readonly unknown[] = ['contact.work_emails', 'contact.personal_emails', 'contact.phones'];
const MAX_CUSTOM_KEYS = 10;
const MAX_CUSTOM_TEXT = 100;

/** One contact of a submission that was accepted. */
export interface Order extends Contact {
  readonly fields: readonly unknown[];
  /** Comes back as it was sent. */
  readonly custom: unknown;
  readonly finding: Finding | null;
}

export interface Submission {
  readonly name: string;
  readonly orders: readonly Order[];
}

/** Why a submission is refused; the code without its `error.enrichment.`. */
export interface Refusal {
  readonly code: string;
  readonly message: string;
}

export function isRefusal(value: object): value is Refusal {
  return 'code' in value;
}

/** The body of a `POST /contact/enrich/bulk`. */
export function readSubmission(request: SimRequest): Submission | Refusal {
  const body = jsonObject(request);
  const name = text(body?.name);
  if (name === null) return refusal('name.empty', 'Enrichment name not set');
  if (!Array.isArray(body?.data) || body.data.length === 0) return refusal('data.empty', 'Data is empty');
  const orders: Order[] = [];
  for (const entry of body.data) {
    const order = readOrder(isRecord(entry) ? entry : {});
    if (isRefusal(order)) return order;
    orders.push(order);
  }
  return { name, orders };
}

function readOrder(entry: Record<string, unknown>): Order | Refusal {
  const first = text(entry.first_name);
  const last = text(entry.last_name);
  const domain = text(entry.domain);
  const company = text(entry.company_name);
  if (first === null) return refusal('first_name.empty', 'First name cannot be empty');
  if (last === null) return refusal('last_name.empty', 'Last name cannot be empty');
  if (domain === null && company === null) return refusal('domain.empty', 'Domain cannot be empty');
  const { enrich_fields: fields, custom = {} } = entry;
  if (!Array.isArray(fields) || fields.length === 0)
    return refusal('enrich_fields.empty', 'enrichFields cannot be empty');
  const wrong: unknown = fields.find((field) => !FIELDS.includes(field));
  if (wrong !== undefined) return refusal('enrich_field.value', `enrichField '${wrong}' not valid`);
  const contact = { first, last, domain, company };
  const order = { ...contact, fields, custom, finding: findingOf('fullenrich', contact) };
  return refuseCustom(custom) ?? order;
}

/** "values must be strings", at most ten of at most a hundred characters. */
function refuseCustom(custom: unknown): Refusal | null {
  const values = isRecord(custom) ? Object.values(custom) : [null];
  if (values.length > MAX_CUSTOM_KEYS)
    return refusal('custom.key.exceeded', 'Custom field contains too many keys (max: 10 keys)');
  const allowed = (value: unknown) => typeof value === 'string' && value.length <= MAX_CUSTOM_TEXT;
  return values.every(allowed)
    ? null
    : refusal('custom.value.exceeded', 'Custom field value max len exceeded (max: 100 character)');
}

function refusal(code: string, message: string): Refusal {
  return { code, message };
}
