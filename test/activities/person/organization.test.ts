import test from 'ava';
import {
  organizationName,
  resembles,
} from '../../../activities/person/organization-name.ts';
import { organizationKey } from '../../../db/providers/keys.ts';

const NAMES: readonly (readonly [written: string, read: string])[] = [
  ['CEDAR VALLEY CLINIC PLLC', 'Cedar Valley Clinic'],
  ['CEDAR VALLEY CLINIC, P.L.L.C.', 'Cedar Valley Clinic'],
  ['CEDAR VALLEY CLINIC P. A.', 'Cedar Valley Clinic'],
  ['CENTER FOR SLEEP OF THE ROCKIES INC', 'Center for Sleep of the Rockies'],
  ['JANE PUBLIC MD PA', 'Jane Public MD'],
  ['FAIRHAVEN OB/GYN & FRIENDS', 'Fairhaven OB/GYN & Friends'],
  ["AMBERFIELD WOMEN'S HEALTH", "Amberfield Women's Health"],
  ['Cedar Valley', 'Cedar Valley'],
  // Legal forms of several words.
  ['JANE PUBLIC MD, A MEDICAL CORPORATION', 'Jane Public MD'],
  ['JANE PUBLIC A CALIFORNIA PROFESSIONAL MEDICAL CORPORATION', 'Jane Public'],
  ['ALDER EYE A PROFESSIONAL CORP.', 'Alder Eye'],
  ['ALDER EYE PROFESSIONAL ASSOCIATION', 'Alder Eye'],
  ['ALDER EYE PROFESSIONAL LIMITED LIABILITY COMPANY', 'Alder Eye'],
  ['ALDER EYE LIMITED LIABILITY CO', 'Alder Eye'],
  ['ALDER EYE, A LIMITED PARTNERSHIP', 'Alder Eye'],
  ['ALDER EYE PROF CORP', 'Alder Eye'],
  ['A PROFESSIONAL CORPORATION', 'A Professional'],
  ['ALDER PROFESSIONAL SERVICES', 'Alder Professional Services'],
  ['MEDICAL ASSOCIATES, P.C.', 'Medical Associates'],
  // State abbreviations that are also legal forms.
  ['CARDIOLOGY OF PA', 'Cardiology of PA'],
  ['CARDIOLOGY OF PA LLC', 'Cardiology of PA'],
  ['CARDIOLOGY OF WESTERN PA', 'Cardiology of Western PA'],
  ['UROLOGY CONSULTANTS OF SC', 'Urology Consultants of SC'],
  ['CARDIOLOGY OF DENVER PA', 'Cardiology of Denver'],
  ['ALDER & CO', 'Alder & Co'],
  ['ALDER CO', 'Alder'],
  // Trade names.
  ['DENVER PROVIDERS 2 LLC DBA ALDER CLINIC', 'Alder Clinic'],
  ['DENVER PROVIDERS 2, LLC D/B/A ALDER CLINIC, LLC', 'Alder Clinic'],
  ['DENVER PROVIDERS 2 LLC d.b.a. Alder Clinic', 'Alder Clinic'],
  ['DENVER PROVIDERS 2 DOING BUSINESS AS ALDER CLINIC', 'Alder Clinic'],
  ['DENVER PROVIDERS 2 LLC DBA', 'Denver Providers 2'],
];

for (const [written, read] of NAMES) {
  test(`the organization name "${written}" is normalized to "${read}"`, (t) => {
    t.is(organizationName(written), read);
  });
}

test('a placeholder such as "<UNAVAIL>" is not an organization name', (t) => {
  const nothing = [
    '',
    '<UNAVAIL>',
    '--',
    'NONE',
    'LLC',
    'P.C.',
    'THE',
    'N/A',
    'NA',
    'Same',
    'SELF',
    'Not Applicable',
  ];
  for (const text of [null, ...nothing]) {
    t.is(organizationName(text), null, String(text));
  }
});

test("all notations of an organization's name have the same comparison key", (t) => {
  const spellings = [
    'THE ALDER CLINIC, P.L.L.C.',
    'Alder Clinic',
    'ALDER CLINIC A MEDICAL CORPORATION',
    'DENVER PROVIDERS DBA ALDER CLINIC',
  ];
  t.deepEqual(new Set(spellings.map(organizationKey)), new Set(['alderclinic']));
  t.not(organizationKey('CARDIOLOGY OF PA'), organizationKey('CARDIOLOGY OF SC'));
});

test("a domain resembles an organization's name if it has a rare word or the initials", (t) => {
  const pairs: [string, string, boolean][] = [
    ['cedarvalleyclinic.com', 'Cedar Valley Clinic', true],
    ['cedarpeds.com', 'Cedar Valley Pediatrics', true],
    ['cvp.org', 'Cedar Valley Pediatrics', true],
    ['cvpmd.com', 'Cedar Valley Pediatrics', true],
    ['omalleyderm.com', "O'Malley Dermatology", true],
    ['valleycare.com', 'Cedar Valley Care', false],
    ['familymedicine.com', 'Alder Family Medicine', false],
    ['cv.org', 'Cedar Valley', false],
    ['papersdone.com', 'Cedar Valley Clinic', false],
  ];
  for (const [domain, name, expected] of pairs)
    t.is(resembles(domain, name), expected, `${domain} ${name}`);
});
