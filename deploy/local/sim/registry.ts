import { hasNpiCheckDigit } from '../../../db/providers/npi.ts';
import { DEACTIVATED_NPIS } from './magic.ts';
import { personOf, type SimPerson } from './people.ts';
import { ok, type SimRequest, type Source, type SubjectResponse } from './wire.ts';

/**
 * Simulates the NPI Registry's API, version 2.1. It needs no key, and every response has the status
 * 200, even an error. The simulation has a person for every NPI with a correct check digit, except
 * deactivated ones. It has no organizations, because all simulated organizations are in the NPPES
 * sample.
 */
export const registry: Source = {
  base: '/registry/api',
  deny: () => null,
  routes: { 'GET /': find },
};

function find({ query }: SimRequest): SubjectResponse {
  const npi = query.get('number') ?? '';
  return [npi, ok(bodyAbout(npi, query.get('version')))];
}

function bodyAbout(npi: string, version: string | null) {
  if (version !== '2.1') {
    return refusal('17', 'version', 'Unsupported Version');
  }
  if (!/^[0-9]{10}$/.test(npi)) {
    return refusal('06', 'number', 'NPI must be 10 digits');
  }
  if (DEACTIVATED_NPIS.includes(npi)) {
    const description = `CMS deactivated NPI ${npi}. The provider can no longer use this NPI.`;
    return refusal('15', 'number', description);
  }
  if (!hasNpiCheckDigit(npi)) return { result_count: 0, results: [] };
  return { result_count: 1, results: [personResult(personOf(npi))] };
}

function refusal(number: string, field: string, description: string) {
  return { Errors: [{ description, field, number }] };
}

function personResult({
  npi,
  first,
  last,
  middle,
  credential,
  taxonomy,
  organization,
}: SimPerson) {
  const { address, phone } = organization;
  return {
    number: npi,
    enumeration_type: 'NPI-1',
    basic: {
      first_name: first.toUpperCase(),
      last_name: last.toUpperCase(),
      middle_name: middle?.toUpperCase() ?? '--',
      credential,
      last_updated: '2026-06-09',
      status: 'A',
    },
    addresses: [
      {
        address_purpose: 'LOCATION',
        address_1: address.line1,
        address_2: address.line2,
        city: address.city,
        state: address.state,
        postal_code: `${address.zip}0001`,
        telephone_number: phone.replace(/^(...)(...)/, '$1-$2-'),
      },
    ],
    taxonomies: [{ code: taxonomy, primary: true }],
  };
}
