import { type Finding, search } from './knowledge.ts';
import {
  aboutPerson,
  contactOf,
  type Memory,
  ok,
  type SimRequest,
  type SimResponse,
  type Source,
} from './wire.ts';

const DAY_MS = 86_400_000;
const RUNNING: SimResponse = { status: 202, body: {} };
const NOT_FOUND = problem(404, 'not_found', 'No email was found');
const CLAIMED = problem(
  451,
  'claimed_email',
  'This person asked us to stop processing their personal data',
);

/**
 * Simulates Hunter's API, version 2, according to its OpenAPI document and its documentation. `GET
 * /email-finder` returns an email. The status 202 means that the client should repeat the request.
 */
export const hunter: Source = {
  base: '/hunter/v2',
  deny({ headers }, apiKey) {
    if (headers['x-api-key'] === apiKey) return null;
    return problem(
      401,
      'authentication_failed',
      'No user found for the API key supplied',
    );
  },
  routes: {
    'GET /email-finder': aboutPerson(
      find,
      { nobody: NOT_FOUND, optedout: CLAIMED },
      result,
    ),
  },
};

function find({ query }: SimRequest): Finding | SimResponse {
  const contact = contactOf(
    Object.fromEntries(query),
    query.get('domain'),
    query.get('company'),
  );
  if (contact) return search('hunter', contact);
  return problem(400, 'wrong_params', 'You are missing a name, or a domain or company');
}

function result(finding: Finding, _request: SimRequest, memory: Memory): SimResponse {
  const { subject, person, workEmail, known } = finding;
  const response = ok({
    data: {
      first_name: person.first,
      last_name: person.last,
      email: workEmail,
      domain: person.organization.domain,
      verification: {
        date: new Date(Date.now() - DAY_MS).toISOString().slice(0, 10),
        status: 'valid',
      },
    },
  });
  if (known === 'slow') {
    return memory.inTurn(subject, [RUNNING, RUNNING], response);
  }
  return response;
}

function problem(code: number, id: string, details: string): SimResponse {
  return { status: code, body: { errors: [{ id, code, details }] } };
}
