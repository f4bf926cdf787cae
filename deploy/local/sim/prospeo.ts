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
} from './wire.ts';

/**
 * Simulates Prospeo's API according to its public documentation. `POST /enrich-person` returns a
 * person. Every error has the status 400 and an `error_code`, and so does the response about an
 * unknown person.
 */
export const prospeo: Source = {
  base: '/prospeo',
  deny({ headers }, apiKey) {
    if (headers['x-key'] === apiKey) return null;
    return problem(401, 'INVALID_API_KEY');
  },
  routes: {
    'POST /enrich-person': aboutPerson(
      find,
      { nobody: problem(400, 'NO_MATCH') },
      result,
    ),
  },
};

function find({ body }: SimRequest): Finding | SimResponse {
  const data: Fields = Object(body.data);
  const contact = contactOf(data, data.company_website, data.company_name);
  if (contact) return search('prospeo', contact);
  return problem(400, 'INVALID_DATAPOINTS');
}

function result(finding: Finding, _request: SimRequest, memory: Memory): SimResponse {
  const { subject, person, workEmail: email } = finding;
  const { first, last, organization } = person;
  return ok({
    error: false,
    // Prospeo charges only once for a person, so every response after the first is free.
    free_enrichment: memory.inTurn(subject, [false], true),
    person: {
      first_name: first,
      last_name: last,
      full_name: `${first} ${last}`,
      email: { status: 'VERIFIED', revealed: true, email },
      location: { country_code: 'US', state: organization.address.state },
    },
    company: { domain: organization.domain },
  });
}

function problem(status: number, errorCode: string): SimResponse {
  return { status, body: { error: true, error_code: errorCode } };
}
