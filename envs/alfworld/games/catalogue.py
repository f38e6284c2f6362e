"""Kinds of rooms, their furniture, and the usual places of objects, by ALFWorld's type names (``CounterTop``).

Which receptacle can hold which object is decided by the installed alfworld package
(:mod:`gagpo.envs.alfworld.games.package_data`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gagpo.base.errors import InvalidArgument

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
SIZES = ("small", "full", "varied", "alfred", "alfred2", "alfred3")

# The appliance of a task type.
TOOL_OF_TASK = {
    "pick_clean_then_place_in_recep": "SinkBasin",
    "pick_heat_then_place_in_recep": "Microwave",
    "pick_cool_then_place_in_recep": "Fridge",
}


@dataclass(frozen=True)
class Room:
    """A kind of room.

    first_scene: scene numbers are ``first_scene`` .. ``first_scene + 29``, as in ALFRED.
    always: receptacles of every small room.
    sometimes: further receptacles of small rooms, each at most as often as it is listed.
    ranges: receptacle type -> (least, most) number in a full room.
    everyday: object types of all rooms.
    further: object types that small rooms do not have.
    lamps: lamp types that the room may have.
    """

    name: str
    first_scene: int
    tasks: tuple[str, ...]
    always: tuple[str, ...]
    sometimes: tuple[str, ...]
    ranges: dict[str, tuple[int, int]]
    everyday: tuple[str, ...]
    further: tuple[str, ...]
    lamps: tuple[str, ...] = ()

    def objects(self, size: str) -> tuple[str, ...]:
        if size == "small":
            return self.everyday
        return self.everyday + self.further


SCENES_PER_ROOM = 30
UNSEEN_PER_ROOM = 6  # the first scenes of each kind are not used for training

ROOMS = {
    room.name: room
    for room in (
        Room(
            name="kitchen",
            first_scene=1,
            tasks=tuple(task for task in TASK_TYPES if task != "look_at_obj_in_light"),
            always=("Fridge", "Microwave", "SinkBasin", "CounterTop"),
            sometimes=("Cabinet", "Cabinet", "Cabinet", "Drawer", "Drawer", "DiningTable", "Shelf", "GarbageCan",
                       "CoffeeMachine", "StoveBurner", "SideTable"),
            ranges={"Cabinet": (7, 20), "Drawer": (4, 14), "CounterTop": (2, 4), "StoveBurner": (4, 6),
                    "Fridge": (1, 1), "Microwave": (1, 1), "SinkBasin": (1, 1), "GarbageCan": (1, 1),
                    "CoffeeMachine": (1, 1), "Toaster": (1, 1), "DiningTable": (0, 2), "Shelf": (0, 4),
                    "SideTable": (0, 1)},
            everyday=("Apple", "Potato", "Tomato", "Egg", "Bread", "Lettuce", "Mug", "Cup", "Plate", "Bowl", "Pan",
                      "Knife", "Fork", "Spoon", "SaltShaker", "DishSponge"),
            further=("ButterKnife", "Spatula", "Ladle", "Pot", "Kettle", "PepperShaker", "Glassbottle", "WineBottle",
                     "SoapBottle", "CreditCard", "CellPhone", "Vase", "Statue", "Book"),
        ),
        Room(
            name="living room",
            first_scene=201,
            tasks=("pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place"),
            always=("Sofa", "CoffeeTable", "SideTable"),
            sometimes=("ArmChair", "Shelf", "Shelf", "Drawer", "Drawer", "Cabinet", "Dresser", "GarbageCan", "Ottoman",
                       "DiningTable", "Safe"),
            ranges={"Sofa": (1, 2), "ArmChair": (1, 3), "CoffeeTable": (1, 2), "SideTable": (1, 4), "Shelf": (2, 10),
                    "Drawer": (4, 14), "Cabinet": (2, 8), "Dresser": (0, 2), "TVStand": (0, 1), "DiningTable": (0, 2),
                    "GarbageCan": (1, 1), "Ottoman": (0, 1), "Safe": (0, 1), "Desk": (0, 1)},
            everyday=("Book", "CellPhone", "CreditCard", "KeyChain", "Laptop", "Newspaper", "Pillow", "RemoteControl",
                      "Statue", "Vase", "Watch"),
            further=("Box", "Candle", "Pen", "Pencil", "Plate", "TissueBox", "WateringCan", "Bowl", "AlarmClock"),
            lamps=("DeskLamp", "FloorLamp"),
        ),
        Room(
            name="bedroom",
            first_scene=301,
            tasks=("pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place"),
            always=("Bed", "Desk", "SideTable"),
            sometimes=("Drawer", "Drawer", "Drawer", "Shelf", "Shelf", "Dresser", "ArmChair", "GarbageCan", "Safe",
                       "Cabinet"),
            ranges={"Bed": (1, 1), "Desk": (1, 2), "SideTable": (1, 3), "Drawer": (6, 15), "Shelf": (4, 12),
                    "Dresser": (1, 2), "ArmChair": (0, 2), "GarbageCan": (1, 1), "Safe": (0, 1), "Cabinet": (1, 6),
                    "LaundryHamper": (0, 1), "Sofa": (0, 1)},
            everyday=("AlarmClock", "Book", "CD", "CellPhone", "CreditCard", "KeyChain", "Laptop", "Mug", "Pen",
                      "Pencil", "Pillow"),
            further=("BaseballBat", "BasketBall", "Bowl", "Box", "Cloth", "RemoteControl", "Statue", "TennisRacket",
                     "TissueBox", "Vase", "Watch", "Newspaper"),
            lamps=("DeskLamp", "FloorLamp"),
        ),
        Room(
            name="bathroom",
            first_scene=401,
            tasks=("pick_and_place_simple", "pick_clean_then_place_in_recep", "pick_two_obj_and_place"),
            always=("SinkBasin", "CounterTop", "Toilet"),
            sometimes=("Cabinet", "Cabinet", "Cabinet", "Drawer", "Drawer", "Shelf", "BathtubBasin", "GarbageCan",
                       "SideTable", "Cart"),
            ranges={"SinkBasin": (1, 2), "CounterTop": (1, 2), "Toilet": (1, 1), "Cabinet": (4, 8), "Drawer": (4, 10),
                    "Shelf": (2, 6), "BathtubBasin": (0, 1), "GarbageCan": (1, 1), "SideTable": (0, 1), "Cart": (0, 1),
                    "ToiletPaperHanger": (1, 1), "TowelHolder": (1, 2), "HandTowelHolder": (1, 3),
                    "LaundryHamper": (0, 1)},
            everyday=("Cloth", "SoapBar", "SoapBottle", "SprayBottle", "ToiletPaper", "Candle", "DishSponge",
                      "TissueBox"),
            further=("HandTowel", "Towel", "Plunger", "ToiletPaperRoll", "PaperTowel", "Newspaper"),
        ),
    )
}  # fmt: skip

# Most likely first. The generator puts four of five objects into one of these; an orderly expert starts with them.
USUAL_PLACES = {
    "AlarmClock": ("Desk", "SideTable", "Dresser", "Shelf"),
    "Apple": ("Fridge", "CounterTop", "DiningTable", "SinkBasin", "GarbageCan"),
    "BaseballBat": ("Bed",),
    "BasketBall": ("Bed", "ArmChair", "Dresser", "Desk"),
    "Book": ("Bed", "Desk", "Sofa", "SideTable", "CoffeeTable", "Shelf", "Drawer", "CounterTop"),
    "Bowl": ("CounterTop", "Cabinet", "DiningTable", "Fridge", "Shelf", "Desk", "CoffeeTable"),
    "Box": ("CoffeeTable", "Sofa", "Cabinet", "Desk", "DiningTable"),
    "Bread": ("CounterTop", "DiningTable", "Fridge"),
    "ButterKnife": ("CounterTop", "Drawer", "DiningTable"),
    "CD": ("Desk", "Drawer", "Shelf", "SideTable"),
    "Candle": ("CounterTop", "Toilet", "Cabinet", "Shelf", "CoffeeTable", "Cart"),
    "CellPhone": ("Desk", "SideTable", "Bed", "Drawer", "Dresser", "Sofa", "CoffeeTable", "CounterTop"),
    "Cloth": ("Cabinet", "BathtubBasin", "CounterTop", "Drawer", "Cart", "LaundryHamper"),
    "CreditCard": ("Desk", "SideTable", "Drawer", "Dresser", "Sofa", "CoffeeTable", "CounterTop"),
    "Cup": ("Cabinet", "CounterTop", "DiningTable", "SinkBasin", "Fridge", "Microwave", "SideTable"),
    "DishSponge": ("SinkBasin", "CounterTop", "Drawer", "Cabinet", "Cart"),
    "Egg": ("Fridge", "CounterTop", "SinkBasin", "Microwave"),
    "Fork": ("Drawer", "CounterTop", "DiningTable", "SinkBasin"),
    "Glassbottle": ("CounterTop", "Cabinet", "Fridge"),
    "HandTowel": ("HandTowelHolder", "CounterTop", "Cabinet"),
    "Kettle": ("StoveBurner", "CounterTop", "Cabinet", "Shelf"),
    "KeyChain": ("SideTable", "Drawer", "Dresser", "Sofa", "Desk", "CoffeeTable", "Safe"),
    "Knife": ("CounterTop", "Drawer", "DiningTable", "SinkBasin"),
    "Ladle": ("Drawer", "CounterTop", "DiningTable"),
    "Laptop": ("Desk", "Bed", "Sofa", "CoffeeTable", "DiningTable", "ArmChair"),
    "Lettuce": ("Fridge", "CounterTop", "DiningTable", "SinkBasin"),
    "Mug": ("CounterTop", "CoffeeMachine", "Cabinet", "Desk", "SinkBasin", "Microwave", "Shelf"),
    "Newspaper": ("Sofa", "CoffeeTable", "SideTable", "GarbageCan", "ArmChair", "Toilet", "Drawer"),
    "Pan": ("StoveBurner", "CounterTop", "Cabinet", "Fridge"),
    "PaperTowel": ("CounterTop", "Toilet", "GarbageCan"),
    "Pen": ("Desk", "Drawer", "SideTable", "Shelf", "GarbageCan"),
    "Pencil": ("Desk", "Drawer", "SideTable", "Shelf", "GarbageCan"),
    "PepperShaker": ("Cabinet", "Drawer", "CounterTop", "DiningTable"),
    "Pillow": ("Bed", "Sofa", "ArmChair"),
    "Plate": ("Cabinet", "CounterTop", "DiningTable", "Fridge", "SideTable", "CoffeeTable"),
    "Plunger": ("Cabinet", "Cart"),
    "Pot": ("StoveBurner", "CounterTop", "Cabinet", "Fridge"),
    "Potato": ("Fridge", "CounterTop", "SinkBasin", "DiningTable", "Microwave"),
    "RemoteControl": ("Sofa", "CoffeeTable", "SideTable", "ArmChair", "Dresser", "Drawer"),
    "SaltShaker": ("Cabinet", "Drawer", "CounterTop", "DiningTable"),
    "SoapBar": ("SinkBasin", "Toilet", "CounterTop", "BathtubBasin", "Cabinet", "GarbageCan", "Drawer"),
    "SoapBottle": ("CounterTop", "Toilet", "Cabinet", "Cart", "GarbageCan", "Drawer"),
    "Spatula": ("Drawer", "CounterTop", "DiningTable", "SinkBasin"),
    "Spoon": ("Drawer", "CounterTop", "DiningTable", "SinkBasin"),
    "SprayBottle": ("Toilet", "CounterTop", "Cabinet", "GarbageCan", "Cart", "Drawer"),
    "Statue": ("CoffeeTable", "Shelf", "SideTable", "Dresser", "CounterTop"),
    "TennisRacket": ("Bed", "Desk", "Dresser"),
    "TissueBox": ("Toilet", "SideTable", "CoffeeTable", "CounterTop", "Desk", "Cabinet", "Drawer"),
    "ToiletPaper": ("Toilet", "Cabinet", "ToiletPaperHanger", "Drawer", "CounterTop"),
    "ToiletPaperRoll": ("ToiletPaperHanger", "Toilet", "Cabinet", "GarbageCan"),
    "Tomato": ("Fridge", "CounterTop", "DiningTable", "SinkBasin", "Microwave"),
    "Towel": ("TowelHolder",),
    "Vase": ("Shelf", "CoffeeTable", "SideTable", "Safe", "CounterTop", "Dresser"),
    "Watch": ("SideTable", "Dresser", "CoffeeTable", "Safe", "Drawer", "Desk", "Shelf"),
    "WateringCan": ("SideTable", "CoffeeTable", "Drawer", "Cabinet"),
    "WineBottle": ("Fridge", "CounterTop", "Cabinet", "DiningTable"),
    "DeskLamp": ("Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable"),
    "FloorLamp": ("SideTable", "Desk", "TVStand", "Sofa", "CoffeeTable"),
}  # fmt: skip


def room_of_scene(scene: int) -> Room:
    """The kind of room with scene number ``scene``; raises ValueError if there is none."""
    for room in ROOMS.values():
        if room.first_scene <= scene < room.first_scene + SCENES_PER_ROOM:
            return room
    raise InvalidArgument(f"there is no scene {scene}", advice="scenes are 1-30, 201-230, 301-330 and 401-430")
