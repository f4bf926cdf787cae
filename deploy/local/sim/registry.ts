import { hasNpiCheckDigit } from '../../../activities/person/npi.ts';
import { DEACTIVATED_NPIS } from './magic.ts';
import {
  personOf,
  SAMPLE_ENDPOINTS,
  SAMPLE_ORGANIZATIONS,
  type SimEndpoint,
  type SimOrganization,
  type SimPerson,
} from './people.ts';
import { type Answered, ok, type Question, type Source } from './wire.ts';

/**
 * The NPI Registry's wire format, version 2.1: everything is 200, errors too. It needs no key. It knows the sample's
 * organizations, and the person of every other NPI with a right check digit; it does not show those out of service.
 */
export const registry: Source = {
  base: '/registry/api',
  deny: () => null,
  routes: { 'GET /': find },
};

function find({ query }: Question): Answered {
  const npi = query.get('number') ?? '';
  return [npi, ok(bodyAbout(npi, query.get('version')))];
}

function bodyAbout(npi: string, version: string | null) {
  if (version !== '2.1') return refusal('17', 'version', 'Unsupported Version');
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
      ...STATUS,
    },
    other_names: [],
  };
}

function organizationResult(organization: SimOrganization) {
  const { npi, name, dba } = organization;
  return {
    ...frame(npi, 'NPI-2', organization, '261Q00000X'),
    basic: { organization_name: name, ...STATUS },
    other_names: dba === null ? [] : [{ organization_name: dba, type: 'Doing Business As', code: '3' }],
  };
}

function frame(npi: string, type: 'NPI-1' | 'NPI-2', organization: SimOrganization, taxonomy: string) {
  return {
    number: npi,
    enumeration_type: type,
    addresses: [addressOf(organization)],
    practiceLocations: [],
    taxonomies: [{ code: taxonomy, state: organization.address.state, primary: true }],
    endpoints: SAMPLE_ENDPOINTS.filter((endpoint) => endpoint.npi === npi).map(endpointOf),
  };
}

const STATUS = { last_updated: '2026-06-09', status: 'A' };

function addressOf({ address, phone }: SimOrganization) {
  return {
    address_purpose: 'LOCATION',
    address_1: address.line1,
    address_2: address.line2 ?? undefined,
    city: address.city,
    state: address.state,
    postal_code: `${address.zip}0001`,
    country_code: 'US',
    telephone_number: phone.replace(/^(...)(...)/, '$1-$2-'),
  };
}

function endpointOf({ type, use, endpoint, affiliation }: SimEndpoint) {
  return {
    endpointType: type,
    endpoint,
    affiliation: affiliation === null ? 'N' : 'Y',
    affiliationName: affiliation?.name,
    use,
  };
}
