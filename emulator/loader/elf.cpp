#include "loader/elf.hpp"

#include <algorithm>

namespace loader {
namespace {

constexpr uint64_t kHeaderBytes = 64;
constexpr uint32_t kLoad = 1, kDynamic = 2, kNote = 4;
constexpr uint32_t kDynamicSymbols = 11;  // section type
constexpr uint16_t kMachineAmdGpu = 224;
constexpr uint8_t kOsHsa = 64;
constexpr uint32_t kMetadataNote = 32;
// A GPU has no more memory; a larger image is a corrupt one.
constexpr uint64_t kMaxImage = uint64_t{64} << 30;

struct FileHeader {
  uint8_t ident[16];
  uint16_t type, machine;
  uint32_t version;
  uint64_t entry, program_headers, section_headers;
  uint32_t flags;
  uint16_t header_bytes, program_header_bytes, program_header_count;
  uint16_t section_header_bytes, section_header_count, section_names;
};
static_assert(sizeof(FileHeader) == kHeaderBytes);

struct ProgramHeader {
  uint32_t type, flags;
  uint64_t offset, address, physical, file_bytes, bytes, align;
};
static_assert(sizeof(ProgramHeader) == 56);

struct SectionHeader {
  uint32_t name, type;
  uint64_t flags, address, offset, bytes;
  uint32_t link, info;
  uint64_t align, entry_bytes;
};
static_assert(sizeof(SectionHeader) == 64);

struct SymbolEntry {
  uint32_t name;
  uint8_t info, other;
  uint16_t section;
  uint64_t value, size;
};
static_assert(sizeof(SymbolEntry) == 24);

struct RelaEntry {
  uint64_t offset, info;
  int64_t addend;
};

struct NoteHeader {
  uint32_t name_bytes, content_bytes, type;
};

uint64_t pad4(uint64_t value) { return (value + 3) & ~uint64_t{3}; }

void read_notes(Elf& elf, Bytes notes) {
  while (!notes.empty()) {
    const auto header = read<NoteHeader>(notes, 0, "note");
    const Bytes name = slice(notes, sizeof header, header.name_bytes, "note name");
    const uint64_t content_at = sizeof header + pad4(header.name_bytes);
    const Bytes content = slice(notes, content_at, header.content_bytes, "note");
    static constexpr char kName[] = "AMDGPU";
    if (header.type == kMetadataNote && name.size() == sizeof kName &&
        std::equal(name.begin(), name.end(), kName)) {
      elf.metadata = content;
    }
    notes = notes.subspan(std::min<uint64_t>(notes.size(), content_at + pad4(content.size())));
  }
}

struct Dynamic {
  uint64_t strings = 0, string_bytes = 0, symbols = 0, hash = 0;
  uint64_t relocations = 0, relocation_bytes = 0, jump_relocations = 0, jump_bytes = 0;
};

Dynamic read_dynamic(Bytes entries) {
  Dynamic result;
  for (uint64_t at = 0; at + 16 <= entries.size(); at += 16) {
    const auto tag = read<uint64_t>(entries, at, "dynamic entry");
    const auto value = read<uint64_t>(entries, at + 8, "dynamic entry");
    switch (tag) {
      case 0:
        return result;
      case 2:
        result.jump_bytes = value;
        break;
      case 4:
        result.hash = value;
        break;
      case 5:
        result.strings = value;
        break;
      case 6:
        result.symbols = value;
        break;
      case 7:
        result.relocations = value;
        break;
      case 8:
        result.relocation_bytes = value;
        break;
      case 10:
        result.string_bytes = value;
        break;
      case 23:
        result.jump_relocations = value;
        break;
    }
  }
  return result;
}

// The dynamic section does not say how many symbols there are: the section table does, or, in a
// stripped file, the hash table.
uint64_t count_symbols(const Elf& elf, Bytes file, const FileHeader& header,
                       const Dynamic& dynamic) {
  for (uint64_t i = 0;
       header.section_header_bytes == sizeof(SectionHeader) && i < header.section_header_count;
       ++i) {
    const auto section =
        read<SectionHeader>(file, header.section_headers + i * sizeof(SectionHeader), "section");
    if (section.type == kDynamicSymbols) return section.bytes / sizeof(SymbolEntry);
  }
  if (!dynamic.hash)
    bad_image("neither a section table nor a hash table gives the number of symbols");
  return read<uint32_t>(elf.at(file, dynamic.hash, 8, "hash table"), 4, "hash table");
}

void read_symbols(Elf& elf, Bytes file, const FileHeader& header, const Dynamic& dynamic) {
  if (!dynamic.symbols) return;
  const uint64_t count = count_symbols(elf, file, header, dynamic);
  if (count > file.size() / sizeof(SymbolEntry)) bad_image("more symbols than bytes");
  const Bytes table = elf.at(file, dynamic.symbols, count * sizeof(SymbolEntry), "symbol table");
  const Bytes names = elf.at(file, dynamic.strings, dynamic.string_bytes, "symbol names");
  for (uint64_t i = 0; i < count; ++i) {
    const auto entry = read<SymbolEntry>(table, i * sizeof(SymbolEntry), "symbol");
    elf.symbols.push_back({read_string(names, entry.name, "symbol name"), entry.value, entry.size,
                           static_cast<uint8_t>(entry.info & 15), entry.section != 0});
  }
}

void read_relocations(Elf& elf, Bytes file, uint64_t address, uint64_t bytes) {
  if (!bytes) return;
  const Bytes table = elf.at(file, address, bytes, "relocations");
  for (uint64_t at = 0; at + sizeof(RelaEntry) <= table.size(); at += sizeof(RelaEntry)) {
    const auto entry = read<RelaEntry>(table, at, "relocation");
    elf.relocations.push_back({entry.offset, static_cast<uint32_t>(entry.info),
                               static_cast<uint32_t>(entry.info >> 32), entry.addend});
  }
}

void check_header(const FileHeader& header) {
  if (std::memcmp(header.ident,
                  "\x7f"
                  "ELF",
                  4) != 0)
    bad_image("not an ELF file");
  if (header.ident[4] != 2 || header.ident[5] != 1)
    bad_image("not a little-endian 64-bit ELF file");
  if (header.machine != kMachineAmdGpu) {
    bad_image(
        rt::text("ELF machine ", header.machine, ", required ", kMachineAmdGpu, " (AMD GPU)"));
  }
  if (header.ident[7] != kOsHsa) {
    bad_image(rt::text("ELF OS ABI ", int{header.ident[7]}, ", required ", int{kOsHsa}, " (HSA)"));
  }
  if (header.type != 3) {
    bad_image(rt::text("ELF type ", header.type,
                       ", required 3 (shared object: link with ld.lld -shared)"));
  }
  if (header.program_header_bytes != sizeof(ProgramHeader)) bad_image("bad program header size");
}

}  // namespace

Bytes Elf::at(Bytes file, uint64_t address, uint64_t size, const char* what) const {
  for (const Segment& segment : segments) {
    if (address >= segment.address && address - segment.address <= segment.file_bytes &&
        size <= segment.file_bytes - (address - segment.address)) {
      return slice(file, segment.offset + (address - segment.address), size, what);
    }
  }
  bad_image(rt::text(what, ": ", size, " bytes at address ", rt::hex(address),
                     " are in no loaded segment"));
}

Elf parse_elf(Bytes file) {
  const auto header = read<FileHeader>(file, 0, "ELF header");
  check_header(header);
  // Most of it is not needed, but a file without its end is a damaged file.
  slice(file, header.section_headers,
        uint64_t{header.section_header_bytes} * header.section_header_count, "section table");
  Elf elf;
  elf.flags = header.flags;
  elf.abi_version = header.ident[8];
  Bytes dynamic_entries;
  for (uint64_t i = 0; i < header.program_header_count; ++i) {
    const auto segment = read<ProgramHeader>(
        file, header.program_headers + i * sizeof(ProgramHeader), "program header");
    const char* what = "segment";
    if (segment.type == kLoad) {
      slice(file, segment.offset, segment.file_bytes, what);
      if (segment.file_bytes > segment.bytes || segment.bytes > kMaxImage ||
          segment.address > kMaxImage - segment.bytes) {
        bad_image(rt::text("segment of ", segment.bytes, " bytes at ", rt::hex(segment.address),
                           " is larger than any device memory, or than its own memory"));
      }
      elf.segments.push_back({segment.offset, segment.address, segment.file_bytes, segment.bytes,
                              (segment.flags & 1) != 0});
      elf.bytes = std::max(elf.bytes, segment.address + segment.bytes);
    } else if (segment.type == kDynamic) {
      dynamic_entries = slice(file, segment.offset, segment.file_bytes, "dynamic section");
    } else if (segment.type == kNote) {
      read_notes(elf, slice(file, segment.offset, segment.file_bytes, "notes"));
    }
  }
  if (elf.segments.empty()) bad_image("no segment to load");
  std::sort(elf.segments.begin(), elf.segments.end(),
            [](const Segment& a, const Segment& b) { return a.address < b.address; });
  for (size_t i = 1; i < elf.segments.size(); ++i) {
    const Segment& before = elf.segments[i - 1];
    if (before.address + before.bytes > elf.segments[i].address) bad_image("segments overlap");
  }
  const Dynamic dynamic = read_dynamic(dynamic_entries);
  read_symbols(elf, file, header, dynamic);
  read_relocations(elf, file, dynamic.relocations, dynamic.relocation_bytes);
  read_relocations(elf, file, dynamic.jump_relocations, dynamic.jump_bytes);
  return elf;
}

uint64_t elf_size(Bytes bytes) {
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(),
                                                 "\x7f"
                                                 "ELF",
                                                 4) != 0)
    return 0;
  const auto header = read<FileHeader>(bytes, 0, "ELF header");
  const auto end = [](uint64_t offset, uint64_t size) {
    return offset > kMaxImage || size > kMaxImage ? uint64_t{0} : offset + size;
  };
  uint64_t size = std::max({kHeaderBytes,
                            end(header.program_headers, uint64_t{header.program_header_bytes} *
                                                            header.program_header_count),
                            end(header.section_headers, uint64_t{header.section_header_bytes} *
                                                            header.section_header_count)});
  for (uint64_t i = 0; i < header.program_header_count; ++i) {
    const uint64_t at = header.program_headers + i * sizeof(ProgramHeader);
    if (at > bytes.size() || sizeof(ProgramHeader) > bytes.size() - at) break;
    const auto segment = read<ProgramHeader>(bytes, at, "program header");
    size = std::max(size, end(segment.offset, segment.file_bytes));
  }
  return size;
}

}  // namespace loader
