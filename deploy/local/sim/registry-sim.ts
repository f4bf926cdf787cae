import { hasNpiCheckDigit } from '../../../activities/person/npi.ts';
import { answer, turnedAway } from './answer.ts';
import { SAMPLE_ENDPOINTS, type SimEndpoint } from './endpoints.ts';
import { DEACTIVATED_NPIS } from './magic.ts';
import { personOf, SAMPLE_ORGANIZATIONS, type SimOrganization, type SimPerson } from './people.ts';
import type { Reply, VendorSim } from './reply.ts';

// The NPI Registry's wire format, version 2.1: everything is 200, errors too. It knows the sample's organizations, and
// the person of every other NPI with a right check digit; it does not show those out of service.

const LATENCY_MS = 300;
const ENUMERATED = Date.UTC(2012, 3, 5);
const UPDATED = Date.UTC(2026, 5, 9);

const ORGANIZATIONS: ReadonlyMap<string, SimOrganization> = new Map(
  SAMPLE_ORGANIZATIONS.map((organization) => [organization.npi, organization]),
);

/** Operation in the log: `find`, about an NPI. It needs no key and costs nothing. */
export function createRegistrySim(): VendorSim {
  return {
    id: 'registry',
    answer({ method, path, query }) {
      if (method !== 'GET' || path !== '/') return turnedAway(answer(404, 'Not Found'));
      const npi = query.get('number') ?? '';
      return { operation: 'find', subject: npi, reply: find(query.get('version'), npi) };
    },
    reset() {},
  };
}

function find(version: string | null, npi: string): Reply {
  if (version !== '2.1') return refuse('17', 'version', 'Unsupported Version');
  if (npi === '') return refuse('04', '', 'No valid search criteria provided');
  if (!/^[0-9]{10}$/.test(npi)) return refuse('06', 'number', 'NPI must be 10 digits');
  if (DEACTIVATED_NPIS.includes(npi)) {
    return refuse('15', 'number', `CMS deactivated NPI ${npi}. The provider can no longer use this NPI.`);
  }
  const organization = ORGANIZATIONS.get(npi);
  if (organization) return results([organizationResult(organization)]);
  return results(hasNpiCheckDigit(npi) ? [personResult(personOf(npi))] : []);
}

function refuse(number: string, field: string, description: string): Reply {
  return answer(200, { Errors: [{ description, field, number }] }, { latencyMs: LATENCY_MS });
}

function results(found: readonly unknown[]): Reply {
  return answer(200, { result_count: found.length, results: found }, { latencyMs: LATENCY_MS });
}

function personResult({ npi, first, last, middle, credential, taxonomy, organization }: SimPerson) {
  return {
    ...frame(npi, 'NPI-1', organization, taxonomy),
    basic: {
      first_name: first.toUpperCase(),
      last_name: last.toUpperCase(),
      middle_name: middle?.toUpperCase() ?? '--',
      credential,
      sole_proprietor: 'NO',
      sex: 'U',
      ...dates(),
      name_prefix: '--',
      name_suffix: '--',
    },
    other_names: [],
  };
}

function organizationResult(organization: SimOrganization) {
  const { npi, name, dba } = organization;
  return {
    ...frame(npi, 'NPI-2', organization, '261Q00000X'),
    basic: { organization_name: name, organizational_subpart: 'NO', ...dates() },
    other_names: dba === null ? [] : [{ organization_name: dba, type: 'Doing Business As', code: '3' }],
  };
}

function frame(npi: string, type: 'NPI-1' | 'NPI-2', organization: SimOrganization, taxonomy: string) {
  const { state } = organization.address;
  return {
    created_epoch: String(ENUMERATED),
    enumeration_type: type,
    last_updated_epoch: String(UPDATED),
    number: npi,
    addresses: ['MAILING', 'LOCATION'].map((purpose) => addressOf(organization, purpose)),
    practiceLocations: [],
    taxonomies: [{ code: taxonomy, taxonomy_group: '', desc: '', state, license: '', primary: true }],
    identifiers: [],
    endpoints: SAMPLE_ENDPOINTS.filter((endpoint) => endpoint.npi === npi).map(endpointOf),
  };
}

function addressOf({ address, phone }: SimOrganization, purpose: string) {
  return {
    country_code: 'US',
    country_name: 'United States',
    address_purpose: purpose,
    address_type: 'DOM',
    address_1: address.line1,
    ...(address.line2 === null ? {} : { address_2: address.line2 }),
    city: address.city,
    state: address.state,
    postal_code: `${address.zip}0001`,
    telephone_number: phone.replace(/^(...)(...)/, '$1-$2-'),
  };
}

function endpointOf({ type, endpoint, use, affiliation }: SimEndpoint) {
  return {
    endpointType: type,
    endpointTypeDescription: TYPE_DESCRIPTIONS[type],
    endpoint,
    affiliation: affiliation === null ? 'N' : 'Y',
    ...(affiliation === null ? {} : { affiliationName: affiliation.name }),
    use,
    address_type: 'DOM',
    country_code: 'US',
    country_name: 'United States',
  };
}

const TYPE_DESCRIPTIONS: Readonly<Record<SimEndpoint['type'], string>> = {
  DIRECT: 'Direct Messaging Address',
  FHIR: 'FHIR URL',
  OTHERS: 'Other URL',
};

function dates() {
  return { enumeration_date: day(ENUMERATED), last_updated: day(UPDATED), status: 'A' };
}

function day(ms: number): string {
  return new Date(ms).toISOString().slice(0, 10);
}
