import { hasNpiCheckDigit } from '../../../activities/person/npi.ts';
import { DEACTIVATED_NPIS } from './magic.ts';
import {
  ENDPOINT_WORDS,
  personOf,
  SAMPLE_ENDPOINTS,
  SAMPLE_ORGANIZATIONS,
  type SimEndpoint,
  type SimOrganization,
  type SimPerson,
} from './people.ts';
import { type Answered, ok, type Question, type Source } from './wire.ts';

const ENUMERATED = Date.UTC(2012, 3, 5);
const UPDATED = Date.UTC(2026, 5, 9);

/**
 * The NPI Registry's wire format, version 2.1: everything is 200, errors too. It needs no key. It knows the sample's
 * organizations, and the person of every other NPI with a right check digit; it does not show those out of service.
 */
export const registry: Source = {
  base: '/registry/api',
  latencyMs: 300,
  deny: () => null,
  notFound: { status: 404, body: 'Not Found' },
  routes: { 'GET /': { operation: 'find', answer: find } },
};

function find({ query }: Question): Answered {
  const npi = query.get('number') ?? '';
  return [npi, ok(bodyAbout(npi, query.get('version')))];
}

function bodyAbout(npi: string, version: string | null) {
  if (version !== '2.1') return refusal('17', 'version', 'Unsupported Version');
  if (npi === '') return refusal('04', '', 'No valid search criteria provided');
  if (!/^[0-9]{10}$/.test(npi)) return refusal('06', 'number', 'NPI must be 10 digits');
  if (DEACTIVATED_NPIS.includes(npi))
    return refusal('15', 'number', `CMS deactivated NPI ${npi}. The provider can no longer use this NPI.`);
  const organization = SAMPLE_ORGANIZATIONS.find((one) => one.npi === npi);
  const person = hasNpiCheckDigit(npi) ? [personResult(personOf(npi))] : [];
  const results = organization ? [organizationResult(organization)] : person;
  return { result_count: results.length, results };
}

function refusal(number: string, field: string, description: string) {
  return { Errors: [{ description, field, number }] };
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
      ...DATES,
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
    basic: { organization_name: name, organizational_subpart: 'NO', ...DATES },
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

const IN_USA = { address_type: 'DOM', country_code: 'US', country_name: 'United States' };
const DATES = { enumeration_date: day(ENUMERATED), last_updated: day(UPDATED), status: 'A' };

function addressOf({ address, phone }: SimOrganization, purpose: string) {
  return {
    ...IN_USA,
    address_purpose: purpose,
    address_1: address.line1,
    ...(address.line2 === null ? {} : { address_2: address.line2 }),
    city: address.city,
    state: address.state,
    postal_code: `${address.zip}0001`,
    telephone_number: phone.replace(/^(...)(...)/, '$1-$2-'),
  };
}

function endpointOf({ type, endpoint, affiliation }: SimEndpoint) {
  const { use, description } = ENDPOINT_WORDS[type];
  return {
    ...IN_USA,
    endpointType: type,
    endpointTypeDescription: description,
    endpoint,
    affiliation: affiliation === null ? 'N' : 'Y',
    ...(affiliation === null ? {} : { affiliationName: affiliation.name }),
    use,
  };
}

function day(ms: number): string {
  return new Date(ms).toISOString().slice(0, 10);
}
