import { type Finding, search } from './knowledge.ts';
import {
  type Answer,
  aboutPerson,
  contactOf,
  type Fields,
  type Memory,
  type Question,
  type Source,
} from './wire.ts';

/**
 * Prospeo's wire format as its public documentation gives it: POST /enrich-person, charged for a match. Everything
 * that went wrong, a person it does not know among them, is 400 with an `error_code`.
 */
export const prospeo: Source = {
  base: '/prospeo',
  deny: ({ headers }, apiKey) => (headers['x-key'] === apiKey ? null : problem(401, 'INVALID_API_KEY')),
  routes: {
    'POST /enrich-person': aboutPerson(find, { nobody: problem(400, 'NO_MATCH') }, result),
  },
};

function find({ body }: Question): Finding | Answer {
  const data: Fields = Object(body.data);
  const contact = contactOf(data, data.company_website, data.company_name);
  return contact ? search('prospeo', contact) : problem(400, 'INVALID_DATAPOINTS');
}

function result(finding: Finding, _question: Question, memory: Memory): Answer {
  const { subject, person, workEmail: email } = finding;
  const { first, last, organization } = person;
  const { city, state } = organization.address;
  return answer(200, {
    error: false,
    // A match is charged once.
    free_enrichment: memory.inTurn(subject, [false], true),
    person: {
      first_name: first,
      last_name: last,
      full_name: `${first} ${last}`,
      email: {
        status: 'VERIFIED',
        revealed: true,
        email,
        verification_method: 'SMTP',
        email_mx_provider: 'Google',
      },
      location: { country: 'United States', country_code: 'US', state, city },
    },
    company: { name: organization.dba ?? organization.name, domain: organization.domain },
  });
}

function problem(status: number, errorCode: string): Answer {
  return answer(status, { error: true, error_code: errorCode });
}

/** Every answer carries how much may still be asked. */
function answer(status: number, body: unknown): Answer {
  const headers = {
    'x-minute-request-left': '59',
    'x-minute-reset-seconds': '1',
    'x-daily-request-left': '1999',
    'x-daily-reset-seconds': '86400',
  };
  return { status, body, headers };
}
