import type { SourceLimits } from '../../db/lookups/sources.ts';
import type { RegistryEndpoint, RegistryLocation, RegistryProvider } from '../../db/providers/providers.ts';
import { ENDPOINT_KINDS } from '../../db/words.ts';
import {
  type HttpAnswer,
  jsonApi,
  protocol,
  type Retry,
  retryOfStatus,
  stepOfBody,
  type Unreadable,
} from '../http/client.ts';
import { at, type Field, FieldError, items, objectAt, present, textOf } from '../http/fields.ts';

export const REGISTRY_URL = 'https://npiregistry.cms.hhs.gov/api/';
/** It publishes none. At most five questions in any second, as its good clients ask, are an even pace of four. */
export const REGISTRY_LIMITS: SourceLimits = { rates: [{ calls: 5, perMs: 1000 }], dailyCredits: null };

/**
 * What the registry made of one question.
 * - `found`: an active NPI
 * - `inactive_or_unknown`: it does not show one; a deactivated NPI and one never assigned look alike here
 * - `retry`: not answered, for the same reasons as a vendor; the same question may be asked again after `afterMs` (null:
 *   our own backoff), at no cost
 * - `fatal`: the answer is not as documented; `field` names where, never a value
 */
export type RegistryStep =
  | { readonly kind: 'found'; readonly provider: RegistryProvider }
  | { readonly kind: 'inactive_or_unknown' }
  | Retry
  | Unreadable;

export type Registry = ReturnType<typeof createRegistry>;

/** It answers within a second or is in trouble. */
const TIMEOUT_MS = 10_000;

/**
 * The public NPI Registry API, version 2.1 (npiregistry.cms.hhs.gov/api-page): who an NPI is if no import has it.
 * Whoever calls keeps to `REGISTRY_LIMITS`, and to one question a day for an NPI.
 * `find` throws only what aborting `signal` throws.
 */
export function createRegistry(at: { readonly baseUrl: string; readonly timeoutMs?: number }) {
  const api = jsonApi(at.baseUrl, { 'user-agent': 'npi-email-enrichment/1.0' }, at.timeoutMs ?? TIMEOUT_MS);

  return {
    /** @param npi 10 digits */
    async find(npi: string, signal: AbortSignal): Promise<RegistryStep> {
      const query = new URLSearchParams({ version: '2.1', number: npi });
      return await api.get(`/?${query}`, signal, (answer) => stepOf(answer, npi));
    },
  };
}

function stepOf(answer: HttpAnswer, npi: string): RegistryStep {
  if (answer.status !== 200) return retryOfStatus(answer) ?? protocol('status');
  return stepOfBody<RegistryStep>(answer, (body) => {
    const provider = readRegistryAnswer(body, npi);
    return provider === null ? { kind: 'inactive_or_unknown' } : { kind: 'found', provider };
  });
}

// The wire format of the NPI Registry API 2.1. Numbers were integers once and are strings now, dates were seconds and
// are milliseconds: both are read. `--` means nothing.

/** "CMS deactivated NPI …. The provider can no longer use this NPI", said with status 200 about the field `number`. */
const DEACTIVATED_ERROR = '15';

/** NPPES's own fields are shorter; longer ones would not fit an index. */
const TEXT_AT_MOST = 200;
const ENDPOINT_AT_MOST = 1000;

/**
 * Reads an answer of status 200 about one NPI. Fields nobody reads may be anything. What is not active is not told
 * apart: error 15, no result and any status but `A` are all "nobody to look up".
 * @returns null if the registry shows no active provider
 * @throws {FieldError} if it is not as documented
 */
export function readRegistryAnswer(body: Field, npi: string): RegistryProvider | null {
  const errors = items(at(body, 'Errors'));
  if (errors.length > 0) {
    const other = errors.find((error) => textAt(error, 'number') !== DEACTIVATED_ERROR);
    // Every other error says that the question is wrong, and it is the same question for all NPIs.
    if (other) throw new FieldError(other);
    return null;
  }
  const results = items(present(at(body, 'results')));
  if (results.length === 0) return null;
  const result = results.find((one) => textAt(one, 'number') === npi);
  if (!result) throw new FieldError(at(body, 'results'));
  const status = at(objectAt(result, 'basic'), 'status');
  if (textOf(status) === null) throw new FieldError(status);
  return textOf(status) === 'A' ? providerOf(result, npi) : null;
}

function providerOf(result: Field, npi: string): RegistryProvider {
  const basic = at(result, 'basic');
  const entityType = entityTypeOf(at(result, 'enumeration_type'));
  const otherNames = items(at(result, 'other_names'));
  const practice = items(at(result, 'addresses')).find(
    (one) => textAt(one, 'address_purpose') === 'LOCATION',
  );
  const taxonomy = items(at(result, 'taxonomies')).find((one) => at(one, 'primary').value === true);
  return {
    npi,
    entityType,
    ...namesOf(entityType, basic, otherNames[0]),
    taxonomyCode: taxonomy ? textAt(taxonomy, 'code') : null,
    practice: practice ? locationOf(practice) : null,
    updatedOn: updatedOn(result),
    endpoints: items(at(result, 'endpoints')).flatMap(endpointOf),
    otherNames: entityType === 2 ? otherNames.flatMap(otherNameOf) : [],
    locations: items(at(result, 'practiceLocations')).map(locationOf),
  };
}

function entityTypeOf(type: Field): 1 | 2 {
  if (type.value === 'NPI-1') return 1;
  if (type.value === 'NPI-2') return 2;
  throw new FieldError(type);
}

/** The first of a person's other names is kept, as NPPES's own file has room for one. */
function namesOf(entityType: 1 | 2, basic: Field, other: Field | undefined) {
  const person = (key: string) => (entityType === 1 ? textAt(basic, key) : null);
  const another = (key: string) => (entityType === 1 && other ? textAt(other, key) : null);
  return {
    lastName: person('last_name'),
    firstName: person('first_name'),
    middleName: person('middle_name'),
    nameSuffix: person('name_suffix'),
    credential: person('credential'),
    otherLastName: another('last_name'),
    otherFirstName: another('first_name'),
    organizationName: entityType === 2 ? textAt(basic, 'organization_name') : null,
    parentName: entityType === 2 ? textAt(basic, 'parent_organization_legal_business_name') : null,
  };
}

function otherNameOf(entry: Field): { name: string; typeCode: string }[] {
  const name = textAt(entry, 'organization_name');
  const typeCode = textAt(entry, 'code');
  return name === null || typeCode === null ? [] : [{ name, typeCode }];
}

function locationOf(entry: Field): RegistryLocation {
  return {
    line1: textAt(entry, 'address_1'),
    line2: textAt(entry, 'address_2'),
    city: textAt(entry, 'city'),
    state: textAt(entry, 'state'),
    postalCode: digitsOf(textAt(entry, 'postal_code')),
    phone: digitsOf(textAt(entry, 'telephone_number')),
  };
}

/** As NPPES's file writes them; postal codes of other countries have letters and stay as they are. */
function digitsOf(text: string | null): string | null {
  if (text === null || /\p{L}/u.test(text)) return text;
  return text.replace(/[^0-9]/g, '') || null;
}

function endpointOf(entry: Field): RegistryEndpoint[] {
  const endpoint = textAt(entry, 'endpoint', ENDPOINT_AT_MOST);
  if (endpoint === null) return [];
  const kind = textAt(entry, 'endpointType');
  const affiliation = textAt(entry, 'affiliation');
  return [
    {
      kind: ENDPOINT_KINDS.find((one) => one === kind) ?? 'OTHERS',
      endpoint,
      affiliated: affiliation === null ? null : affiliation === 'Y',
      affiliationName: textAt(entry, 'affiliationName'),
    },
  ];
}

function updatedOn(result: Field): string | null {
  const day = textAt(at(result, 'basic'), 'last_updated');
  if (day !== null && /^[0-9]{4}-[0-9]{2}-[0-9]{2}$/.test(day) && dayOf(Date.parse(day)) === day) return day;
  const epoch = textAt(result, 'last_updated_epoch');
  if (epoch === null || !/^[0-9]{1,13}$/.test(epoch)) return null;
  // Seconds come here in the year 5138, milliseconds did in 1973.
  return dayOf(Number(epoch) < 1e11 ? Number(epoch) * 1000 : Number(epoch));
}

function dayOf(ms: number): string | null {
  return Number.isNaN(ms) ? null : new Date(ms).toISOString().slice(0, 10);
}

/**
 * Text or a number; null if the member is missing, empty or `--`. Longer text is cut.
 * @throws {FieldError} if it is something else
 */
function textAt(entry: Field, key: string, atMost = TEXT_AT_MOST): string | null {
  const member = at(entry, key);
  const text = typeof member.value === 'number' ? String(member.value) : textOf(member);
  // PostgreSQL stores no NUL; what else isn't a character has no place in a name either.
  const plain = (text ?? '')
    .replace(/\p{C}+/gu, ' ')
    .trim()
    .slice(0, atMost);
  return /^-*$/.test(plain) ? null : plain;
}
