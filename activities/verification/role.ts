// A practice's shared mailboxes, and those of RFC 2142: several people read them, and they outlive each of them.
const ROLES: ReadonlySet<string> = new Set(
  `abuse accounting accounts admin administration administrator admissions appointment appointments
  assistance billing booking bookings business callcenter care careers clinic compliance contact contact-us
  contactus credentialing customer-service customerservice desk dispatch do-not-reply donotreply email
  emergency enquiries enquiry everyone executive fax feedback finance frontdesk front-desk frontoffice
  front-office general hello help helpdesk help-desk hospital hostmaster hr human-resources humanresources
  info information inquiries inquiry insurance intake it jobs lab laboratory legal mail mailbox manager
  management marketing media medical-records medicalrecords newpatient new-patient newpatients new-patients
  news newsletter no-reply noc noreply nurse nurses nursing office officemanager office-manager operations
  orders patient patients patientservices patient-services payroll pharmacy postmaster practice
  practicemanager practice-manager press privacy provider providers purchasing reception receptionist records
  recruiting recruitment referral referrals refills reply returns root rx sales scheduler scheduling
  secretary security service services spam staff subscribe support surgery sysadmin team tech telehealth
  triage unsubscribe usenet uucp webmaster welcome www`.split(/\s+/),
);

/** Whether a local part names a function rather than a person: `office2`, `front.desk`, `billing+north`. */
export function isRole(local: string): boolean {
  const [name = ''] = local.split('+');
  const base = name.replace(/[._-]?[0-9]+$/, '').replace(/[._]/g, '-');
  return ROLES.has(base);
}
